"""Decides the schemes of the model's matrices, by the options and by the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.backends.backend import Backend
from penstock.config import EngineConfig
from penstock.dtypes import QuantizationName, WindowColumns
from penstock.errors import ConfigError
from penstock.models.gguf.blocks import GgufTypes
from penstock.models.quantized import QuantizedFormat
from penstock.models.spec import ModelSpec
from penstock.quant.choice import choose
from penstock.quant.scheme import (
    READ_WHOLE,
    BlockScheme,
    CodebookScheme,
    GroupScheme,
    LatticeScheme,
    Quantization,
)
from penstock.resolve.inputs import Inputs, Reasons, reason


@dataclass(frozen=True)
class WeightQuantization:
    """The options of how weights are quantized."""

    name: QuantizationName
    group: int | None
    zero_points: bool
    head: bool

    def schemes(self, activations: bool, window_columns: WindowColumns) -> Quantization:
        """Raises ConfigError where the options do not go together."""
        return choose(
            self.name,
            self.group,
            self.head,
            zero_points=self.zero_points,
            activations=activations,
            window_columns=window_columns,
        )


@dataclass(frozen=True)
class QuantizationDecision:
    """What the model's matrices, and what they are multiplied with, are quantized to."""

    weights: WeightQuantization
    activations: bool
    schemes: Quantization
    reasons: Reasons
    notes: tuple[str, ...]


def decide_quantization(inputs: Inputs, backend: Backend) -> QuantizationDecision:
    """Return what the options ask for, or what a quantized checkpoint has already."""
    config, own = inputs.config, inputs.spec.quantized
    weights = WeightQuantization(
        config.quantization,
        config.quantization_group,
        config.quantization_zero_points,
        config.quantize_head,
    )
    read = _read_by(own, config, backend)
    if own is not None and own.schemes:
        weights = _as_stored(weights, own)
    activations = config.quantize_activations
    why = backend.defaults.quantize_activations_why
    if activations is None:
        activations = backend.defaults.quantize_activations
        if weights.name == "none" and read is not None and _of_floats(read):
            activations, why = False, "the checkpoint's codes stand for no whole numbers"
    schemes = weights.schemes(activations, backend.defaults.window_columns)
    reasons = {"quantization": "the checkpoint's values"}
    if schemes.linear is not None or read is not None:
        matrices = f"in {schemes.linear}"
        if read is not None:
            matrices = f"as the checkpoint has them ({read})"
        reasons = {
            "quantization": f"matrices {matrices}",
            "quantize_activations": reason(config.quantize_activations, why),
            "quantize_head": f"the output matrix in {_head(inputs, read, schemes)}",
        }
    notes = _order_notes(config, own, backend)
    if own is not None:
        notes += own.notes
    if read is not None:
        notes += _float_notes(read, schemes, inputs.types.weights)
    notes += _block_notes(inputs, backend)
    return QuantizationDecision(weights, activations, schemes, reasons, notes)


def _head(inputs: Inputs, read: QuantizedFormat | None, schemes: Quantization) -> str:
    """Return what the output matrix is in: what the checkpoint has it in, if quantized."""
    matrix = "embed" if inputs.spec.tie_embeddings else "head"
    stored = None if read is None else read.matrix(matrix, inputs.spec.hidden_size)
    scheme = None if stored is None else stored.scheme
    return str(scheme or schemes.head or inputs.types.weights)


def as_read(spec: ModelSpec, config: EngineConfig, backend: Backend) -> ModelSpec:
    """Return the model as ``backend`` reads it: matrices in formats of blocks that it does not
    multiply by are floats then, and so are experts in MXFP4 that are to be rounded."""
    return replace(spec, quantized=_read_by(spec.quantized, config, backend))


def _read_by(
    own: QuantizedFormat | None, config: EngineConfig, backend: Backend
) -> QuantizedFormat | None:
    if own is None:
        return None
    formats = backend.block_formats | backend.sparse_formats()
    if config.tensor_parallel > 1:  # a rank has some rows
        formats -= READ_WHOLE
    return own.limited(formats, rounded=config.quantization != "none")


def _of_floats(own: QuantizedFormat) -> bool:
    """Whether all matrices that are kept as they are have codes of floats."""
    kept = own.schemes
    return bool(kept) and all(
        isinstance(each, LatticeScheme | CodebookScheme)
        or (isinstance(each, BlockScheme) and not each.whole)
        for each in kept
    )


def _block_notes(inputs: Inputs, backend: Backend) -> tuple[str, ...]:
    """Return a note where matrices in blocks become floats."""
    own = inputs.spec.quantized
    found = own.left_out(backend.block_formats) if isinstance(own, GgufTypes) else ""
    if not found:
        return ()
    dtype = inputs.types.weights
    return (
        f"matrices in blocks become {dtype} as they are read, since the {backend.name} backend "
        f"does not multiply by them as they are: {found}",
    )


def _as_stored(asked: WeightQuantization, own: QuantizedFormat) -> WeightQuantization:
    """Return what a checkpoint that is quantized already runs with.

    Raises ConfigError where the options ask for another scheme than its own.
    """
    name: QuantizationName = "none"
    group: int | None
    group, zero_points = None, False
    match own.schemes:
        case (GroupScheme(bits=bits, group_size=size, zero_points=zero_points),):
            name, group = "int8" if bits == 8 else "int4", size or 0
    # They are named as asked: alone they may not even go together.
    others = []
    if asked.name not in ("none", name):
        others.append(f"quantization {asked.name}")
    if asked.group not in (None, group):
        others.append(f"quantization_group {asked.group}")
    if asked.zero_points and not zero_points:
        others.append("quantization_zero_points")
    if others:
        raise ConfigError(
            f"the checkpoint is quantized already ({own}) and is not rounded once more, which "
            f"{' and '.join(others)} would need; leave that out, or take the checkpoint that this "
            "one was made from"
        )
    # Unless the user asks for more, what the checkpoint leaves in floats stays so.
    head = asked.head and asked.name != "none"
    return WeightQuantization(name, group, zero_points, head)


def _float_notes(own: QuantizedFormat, schemes: Quantization, dtype: str) -> tuple[str, ...]:
    """Return a note on matrices that the checkpoint has in fewer bits than they will take."""
    if not own.as_floats:
        return ()
    kept = f"kept in {dtype}, with the memory that takes; --quantization int8 would round them"
    if schemes.linear is not None:
        kept = f"rounded once more, to {schemes.linear}"
    return (f"matrices that the checkpoint has in {', '.join(own.as_floats)} are {kept}",)


def _order_notes(
    config: EngineConfig, own: QuantizedFormat | None, backend: Backend
) -> tuple[str, ...]:
    """Return a note where the backend may refuse the checkpoint's order of columns, which only the
    weights tell."""
    if config.load_format == "dummy" or own is None or not own.any_order or backend.runs_any_order:
        return ()
    return (
        "the checkpoint was quantized with desc_act and without static_groups: if its g_idx "
        f"tensors put columns in another order, the {backend.name} backend refuses it when weights "
        "are read; take a checkpoint that was quantized with desc_act false or static_groups true, "
        "or choose the slow --backend reference",
    )
