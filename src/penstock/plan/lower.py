"""Lowering: from a declared model to primitive ops, one per line of its mathematics."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cache.geometry import KvDType
from penstock.errors import ModelError
from penstock.models.heads import EagleSpec, MedusaSpec
from penstock.models.spec import DType, ModelSpec
from penstock.plan.lower_heads import EagleLowering, MedusaLowering
from penstock.plan.lowering import RESIDUAL, Lowering
from penstock.plan.ops import BufferName, Rows, SelectRows
from penstock.plan.plan import Plan
from penstock.quant.scheme import Quantization

TAPS = "taps"
_NOT_QUANTIZED = Quantization()


def lower(
    spec: ModelSpec,
    dtype: DType | None = None,
    max_positions: int | None = None,
    quantization: Quantization = _NOT_QUANTIZED,
    kv_dtype: KvDType | None = None,
    taps: Sequence[int] = (),
    half: bool = False,
) -> Plan:
    """The primitive plan of ``spec`` with weights in ``dtype`` (default: the checkpoint's).

    ``max_positions`` bounds the rope tables (default: the model's own limit); ``quantization``
    says which matrices are quantized (default: none), ``kv_dtype`` what the KV cache holds
    (default: ``dtype``).

    ``taps`` are layers, counted from 0, at whose input the residual stream is told
    (``Plan.taps``), in this order; one may be named more than once; heads have none. ``half``:
    products with float16 weights read float16, as a GPU multiplies, else float32. Raises ModelError
    where the model has no such layer.
    """
    dtype = dtype or spec.dtype
    positions = max_positions or spec.max_positions
    options = (spec, dtype, positions, quantization, kv_dtype or dtype, half)
    if isinstance(spec, MedusaSpec):
        return MedusaLowering(*options).plan(spec)
    if isinstance(spec, EagleSpec):
        return EagleLowering(*options).plan(spec)
    return _DecoderLowering(*options).plan(taps)


class _DecoderLowering(Lowering):
    """Lowering of a decoder-only transformer."""

    def plan(self, taps: Sequence[int]) -> Plan:
        spec = self._spec
        if not spec.layers:
            raise ModelError("the model has no layers; num_hidden_layers must be at least 1")
        for layer in taps:
            if not 0 <= layer < len(spec.layers):
                raise ModelError(
                    f"hidden states are wanted at the input of layer {layer}, and the model has "
                    f"layers 0 to {len(spec.layers) - 1}"
                )
        tapped = None
        if taps:
            tapped = self._new(TAPS, len(taps) * spec.hidden_size, rows=Rows.SELECTED)
        self._embed(RESIDUAL)
        for index, declared in enumerate(spec.layers):
            h = self._norm(f"layers.{index}.h", f"layers.{index}.attn_norm")
            if tapped is not None:
                self._tap(tapped, [i for i, tap in enumerate(taps) if tap == index])
            self._attention(index, declared, h)
            self._mlp(index, declared)
        last = self._new("last", spec.hidden_size, rows=Rows.SELECTED)
        self._ops.append(SelectRows(RESIDUAL, last))
        normed = self._norm("last_normed", "final_norm", last)
        weight = "embed" if spec.tie_embeddings else "head"
        logits = self._logits(normed, weight, spec.vocab_size)
        return self._finish(logits, self._argmax(logits), normed, tapped)

    def _tap(self, out: BufferName, places: list[int]) -> None:
        """Append ops that copy the selected rows of the residual stream into ``out``.

        Called after a layer's first norm, where the residual stream is up to date in the fused plan
        too.
        """
        size = self._spec.hidden_size
        self._ops += [SelectRows(RESIDUAL, out, place * size) for place in places]
