"""Parts of all kernels over the heads of tokens: pairs that are rotated, and the cache write."""

from __future__ import annotations

from typing import Protocol

import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.cast import cast, nearest_whole


class LayerArrays(Protocol):
    """The arrays of a layer's cache that are written; ``cache.LayerCache`` has them."""

    @property
    def keys(self) -> Tensor: ...

    @property
    def values(self) -> Tensor: ...

    @property
    def key_scales(self) -> Tensor | None: ...

    @property
    def value_scales(self) -> Tensor | None: ...


@triton.jit
def partners(column, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Return for each component of a head whether it is the first of a pair, which is the other,
    and which of the HALF pairs it is. A component that is not rotated is its own partner."""
    turned = column < 2 * HALF
    if INTERLEAVED:
        first = column % 2 == 0
        partner = tl.where(turned, column ^ 1, column)
        pair = column // 2
    else:
        first = column < HALF
        partner = tl.where(first, column + HALF, tl.where(turned, column - HALF, column))
        pair = tl.where(first, column, column - HALF)
    return first, partner, pair


@triton.jit
def coded(x, INTERPRETED: tl.constexpr):
    """Return the int8 codes of float32 heads ``[N, BLOCK]``, still float32, and their bfloat16
    scales ``[N]``, as ``plan.ops.KvWrite`` rounds them."""
    most = tl.max(tl.where(x != x, float("inf"), tl.abs(x)), axis=1)
    # A scale that is not finite is NaN, so that whatever reads these codes sees it.
    most = tl.where(most == float("inf"), float("nan"), most)
    by = tl.full([x.shape[0]], 127.0, tl.float32)
    scale = cast(tl.div_rn(most, by), tl.bfloat16, INTERPRETED)
    divisor = scale.to(tl.float32)
    usable = (divisor > 0)[:, None]
    ratio = tl.div_rn(x, tl.where(usable, divisor[:, None], 1.0) + tl.zeros_like(x))
    code = tl.minimum(tl.maximum(nearest_whole(ratio), -127.0), 127.0)
    return tl.where(usable, code, 0.0), scale


@triton.jit
def store_heads(
    x,
    keys,
    values,
    key_scales,
    value_scales,
    slot,
    kv_head,
    is_key,
    is_value,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    QUANTIZED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Write float32 heads x ``[N, BLOCK]`` to ``slot`` and ``kv_head`` ``[N]`` of the cache.

    Those that are keys go among the keys, those that are values among the values, others nowhere.
    """
    column = tl.arange(0, x.shape[1])
    within = column < HEAD_DIM
    row = (slot // BLOCK_SIZE * KV_HEADS + kv_head) * BLOCK_SIZE + slot % BLOCK_SIZE
    if QUANTIZED:
        x, scale = coded(x, INTERPRETED)
        tl.store(key_scales + row, scale, mask=is_key)
        tl.store(value_scales + row, scale, mask=is_value)
    cells = row[:, None] * HEAD_DIM + column[None, :]
    stored = cast(x, keys.dtype.element_ty, INTERPRETED)
    tl.store(keys + cells, stored, mask=is_key[:, None] & within[None, :])
    tl.store(values + cells, stored, mask=is_value[:, None] & within[None, :])
