"""Lowering: from a declared model to primitive ops, one per line of its mathematics."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cache.geometry import KvDType
from penstock.models.draft_heads import EagleSpec, MedusaSpec
from penstock.models.spec import DType, ModelSpec
from penstock.plan.lower.builder import PlanBuilder
from penstock.plan.lower.decoder import lower_decoder
from penstock.plan.lower.draft_heads import lower_eagle, lower_medusa
from penstock.plan.plan import Plan
from penstock.quant.scheme import Quantization

__all__ = ["lower"]

_NOT_QUANTIZED = Quantization()


def lower(
    spec: ModelSpec,
    dtype: DType | None = None,
    max_positions: int | None = None,
    quantization: Quantization = _NOT_QUANTIZED,
    kv_dtype: KvDType | None = None,
    taps: Sequence[int] = (),
    half: bool = False,
    taken_back: int | None = None,
) -> Plan:
    """The primitive plan of ``spec`` with weights in ``dtype`` (default: the checkpoint's).

    ``max_positions`` bounds the rope tables and chooses between LongRoPE's lists (default: the
    model's own limit), so it is never what memory holds; ``quantization``
    says which matrices are quantized (default: none), ``kv_dtype`` what the KV cache holds
    (default: ``dtype``).

    ``taps`` are layers, counted from 0, at whose input the residual stream is returned
    (``Plan.taps``), in this order; one may be named more than once; heads have none. ``half``:
    products with float16 weights read float16, as a GPU multiplies, else float32. ``taken_back``:
    how many of a sequence's latest tokens may be computed again, as rejected drafts are
    (:func:`~penstock.plan.kv_groups.kv_layers`). Raises ModelError where the model has no such
    layer, and ConfigError where what is to be quantized cannot be.
    """
    dtype = dtype or spec.dtype
    positions = max_positions or spec.max_positions
    build = PlanBuilder(spec, dtype, positions, quantization, kv_dtype or dtype, half, taken_back)
    if isinstance(spec, MedusaSpec):
        return lower_medusa(build, spec)
    if isinstance(spec, EagleSpec):
        return lower_eagle(build, spec)
    return lower_decoder(build, spec, taps)
