"""The weights of heads that draft, and those that they take from the model they draft for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.config import LoadFormat
from penstock.errors import WeightError
from penstock.interface.sources import PlanWeight, Shape, Source, Stored, tensors
from penstock.interface.weights import WeightValue
from penstock.models.draft_heads import DRAFT_TO_TARGET, DraftHeadsSpec, EagleSpec
from penstock.models.names import NameMap
from penstock.models.spec import DType
from penstock.quant import GroupTensor
from penstock.weights.checkpoint import StoredWeights
from penstock.weights.convert import convert
from penstock.weights.disagreement import unexpected
from penstock.weights.draft_head_files import open_draft_heads
from penstock.weights.sources import Found, check, open_named
from penstock.weights.tensor_file import NUMPY_DTYPES

Int32s = NDArray[np.int32]

_SHARED: Final = ("embed", "head")
"""What a head may have in common with its target."""

_CHUNK: Final = 1 << 22  # values that are dequantized at a time


class DraftHeadWeights(StoredWeights):
    """The weights of a folder of heads and, where those lack the embedding or the output
    matrix, the checkpoint of the target.

    EAGLE 1 never has the output matrix, and EAGLE 3 not always the embedding. Every check that
    needs no weight data is done when it is made. Raises WeightError.
    """

    def __init__(
        self,
        folder: Path,
        spec: DraftHeadsSpec,
        weights: Mapping[str, PlanWeight],
        dtype: DType,
        target: Path | None = None,
    ) -> None:
        super().__init__(dtype)
        found = open_draft_heads(folder)
        unused = dict(found)
        for name, weight in weights.items():
            wanted = [tensor.name for tensor in tensors(weight.source)]
            missing = [stored for stored in wanted if stored not in found]
            if not missing:
                self._sources[name] = weight.source, found
            elif isinstance(spec, EagleSpec) and name in lacking(spec) and target is not None:
                self._sources[name] = _of_target(target, spec, name, weight.shape)
            else:
                raise WeightError(
                    f"{folder} lacks tensor {missing[0]!r}, which its config.json asks for; take "
                    "configuration and weights from one checkpoint"
                )
            check(*self._sources[name])
            for stored in wanted:
                unused.pop(stored, None)
        extra = sorted(n for n in unused if spec.names is None or not spec.names.is_idle(n))
        if extra:
            raise unexpected(extra, found[extra[0]][0])

    def get(self, name: str) -> WeightValue:
        """The weight, read-only, in the dtype that this source was opened with: what the target
        has quantized, too, as heads have a quantization of their own."""
        value = super().get(name)
        return _floats(value, self._dtype, name) if isinstance(value, GroupTensor) else value


def _floats(matrix: GroupTensor, dtype: DType, name: str) -> NDArray[Any]:
    """The values of ``matrix`` in ``dtype``, some rows at a time: in float32, with the integers
    that it is made of, all of a vocabulary's would take several times the memory."""
    n, k = matrix.shape
    values = np.empty((n, k), NUMPY_DTYPES[dtype])
    rows = max(1, _CHUNK // max(k, 1))
    for first in range(0, n, rows):
        some = first, min(first + rows, n)
        values[slice(*some)] = convert(matrix.rows(some).dequantize(), dtype, name)
    values.flags.writeable = False
    return values


def lacking(spec: DraftHeadsSpec) -> tuple[str, ...]:
    """Weights that a checkpoint may leave to the target's."""
    if not isinstance(spec, EagleSpec) or spec.hidden_size != spec.target_hidden_size:
        return ()
    return _SHARED if spec.num_outputs == spec.vocab_size else ("embed",)


def takes_from_target(folder: Path, spec: DraftHeadsSpec) -> bool:
    """Whether the weights are not all in ``folder``. Raises WeightError."""
    names = lacking(spec)
    if not names:
        return False
    found = open_draft_heads(folder)
    shape = spec.vocab_size, spec.hidden_size
    sources = (_source(spec.names, name, shape) for name in names)
    return any(tensor.name not in found for source in sources for tensor in tensors(source))


def _of_target(folder: Path, spec: EagleSpec, name: str, shape: Shape) -> tuple[Source, Found]:
    """The target's own embedding or output matrix. Raises WeightError where it is not there."""
    found = open_named(folder, spec.target_checkpoint.names)
    source = spec.target_checkpoint.source(name, shape)
    missing = next((each.name for each in tensors(source) if each.name not in found), None)
    if missing is None:
        return source, found
    fix = "take configuration and weights from one checkpoint"
    if name == "head" and not spec.target_checkpoint.tied:
        fix = "if its output matrix is the embedding, set tie_word_embeddings to true"
    raise WeightError(f"{folder} lacks tensor {missing!r}, which the heads share; {fix}")


def _source(names: NameMap | None, name: str, shape: Shape) -> Source:
    return Stored(name, shape) if names is None else names.source(name, {name: shape})


def read_token_map(
    folder: Path, spec: DraftHeadsSpec, load_format: LoadFormat = "auto"
) -> Int32s | None:
    """Return the token id of each row of the output matrix, ``[num_outputs]``; None if row i is
    token i.

    The file holds what to add to a row's number (``d2t``). Raises WeightError for ids outside the
    vocabulary, or one that several rows have. Of dummy heads, row i is token i.
    """
    if not isinstance(spec, EagleSpec) or spec.kind != "eagle3":
        return None
    rows = np.arange(spec.num_outputs, dtype=np.int64)
    if load_format == "dummy":
        return None
    found = open_draft_heads(folder)
    if DRAFT_TO_TARGET not in found:
        if spec.num_outputs == spec.vocab_size:
            return None
        raise WeightError(
            f"{folder} lacks tensor 'd2t', which tells what tokens its {spec.num_outputs} outputs "
            "are; download the heads again"
        )
    file, tensor = found[DRAFT_TO_TARGET]
    where = f"{file.path}: tensor {tensor.name!r}"
    if tensor.shape != rows.shape:
        raise WeightError(
            f"{where} has shape {list(tensor.shape)}, but config.json asks for {list(rows.shape)}; "
            "take both from one checkpoint"
        )
    tokens = rows + file.integers(tensor.name).astype(np.int64)
    outside = np.flatnonzero((tokens < 0) | (tokens >= spec.vocab_size))
    if len(outside):
        raise WeightError(
            f"{where} maps row {outside[0]} to token {tokens[outside[0]]}, outside the vocabulary "
            f"of {spec.vocab_size}; take the heads from the original again"
        )
    if len(np.unique(tokens)) != len(tokens):
        raise WeightError(
            f"{where} maps several rows to one token; take the heads from the original again"
        )
    result: Int32s = tokens.astype(np.int32)
    return result
