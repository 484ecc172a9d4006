"""Heads normed, rotated, or written to the cache, each by itself: a few heads a program."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.cast import cast
from penstock.backends.cuda.kernels.head_parts import LayerArrays, Written, partners, store_heads
from penstock.backends.cuda.kernels.runtime import INTERPRETED
from penstock.backends.cuda.kernels.tiling import rows_at_once
from penstock.cache.geometry import BLOCK_SIZE

_HEADS = rows_at_once(4)
"""Heads a program, of one token or of neighbours."""


def head_norm(
    x: Tensor,
    weight: Tensor | None,
    out: Tensor,
    eps: float,
    head_dim: int,
    bias: Tensor | None = None,
    centered: bool = False,
) -> None:
    """Run ``plan.ops.HeadNorm``: x float32 ``[rows, heads * head_dim]``, weight and bias float32
    ``[head_dim]``, or each ``[heads, head_dim]``; out may be x."""
    rows, heads = len(x), x.shape[1] // head_dim
    if rows == 0:
        return
    _norm_heads[(triton.cdiv(rows * heads, _HEADS),)](
        x,
        x if weight is None else weight,
        x if bias is None else bias,
        out,
        rows * heads,
        x.stride(0),
        out.stride(0),
        HEADS=heads,
        HEAD_DIM=head_dim,
        EPS=eps,
        CENTERED=centered,
        HAS_WEIGHT=weight is not None,
        HAS_BIAS=bias is not None,
        EACH_WEIGHT=weight is not None and weight.ndim == 2,
        EACH_BIAS=bias is not None and bias.ndim == 2,
        INTERPRETED=INTERPRETED,
        SOME=_HEADS,
        BLOCK=triton.next_power_of_2(head_dim),
        num_warps=2,
        enable_fp_fusion=False,
    )


def rope(
    x: Tensor,
    positions: Tensor,
    tables: tuple[Tensor, Tensor],
    interleaved: bool,
    head_dim: int,
    out: Tensor,
) -> None:
    """Run ``plan.ops.Rope``: x float32 ``[T, heads * head_dim]``, positions int32 ``[T]``; tables:
    cosines and sines, float32 ``[positions, dim / 2]``. out may be x."""
    rows, heads = len(x), x.shape[1] // head_dim
    if rows == 0:
        return
    cos, sin = tables
    _turn_heads[(triton.cdiv(rows * heads, _HEADS),)](
        x,
        positions,
        cos,
        sin,
        out,
        rows * heads,
        x.stride(0),
        out.stride(0),
        HEADS=heads,
        HEAD_DIM=head_dim,
        HALF=cos.shape[1],
        INTERLEAVED=interleaved,
        INTERPRETED=INTERPRETED,
        SOME=_HEADS,
        BLOCK=triton.next_power_of_2(head_dim),
        num_warps=2,
        enable_fp_fusion=False,
    )


def kv_write(k: Tensor, v: Tensor, cache: LayerArrays, slots: Tensor) -> None:
    """Run ``plan.ops.KvWrite``: k and v float32 ``[T, kv_heads * head_dim]``, slots int32 ``[T]``.
    Tokens whose slot is negative write nothing."""
    tokens = len(k)
    if tokens == 0:
        return
    into = Written.of(cache)
    kv_heads, head_dim = into.kv_heads, into.head_dim
    _write_heads[(triton.cdiv(2 * tokens * kv_heads, _HEADS),)](
        k,
        v,
        into.keys,
        into.values,
        into.key_scales,
        into.value_scales,
        slots,
        tokens,
        k.stride(0),
        v.stride(0),
        **into.constants,
        BLOCK_SIZE=BLOCK_SIZE,
        INTERPRETED=INTERPRETED,
        SOME=_HEADS,
        BLOCK=triton.next_power_of_2(head_dim),
        num_warps=2,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["count"])
def _norm_heads(
    x,
    weight,
    bias,
    out,
    count,
    x_stride,
    out_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    EPS: tl.constexpr,
    CENTERED: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    EACH_WEIGHT: tl.constexpr,
    EACH_BIAS: tl.constexpr,
    INTERPRETED: tl.constexpr,
    SOME: tl.constexpr,
    BLOCK: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64) * SOME + tl.arange(0, SOME)
    column = tl.arange(0, BLOCK)
    inside = (head < count)[:, None] & (column < HEAD_DIM)[None, :]
    row, first = head // HEADS, head % HEADS * HEAD_DIM
    y = tl.load(x + (row * x_stride + first)[:, None] + column[None, :], mask=inside, other=0.0)
    if CENTERED:
        y = tl.where(inside, y - (tl.sum(y, axis=1) / HEAD_DIM)[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(y * y, axis=1) / HEAD_DIM + EPS)
    y = y * scale[:, None]
    if HAS_WEIGHT:
        y = y * _for_heads(weight, first, column, inside, HEAD_DIM, EACH_WEIGHT)
    if HAS_BIAS:
        y = y + _for_heads(bias, first, column, inside, HEAD_DIM, EACH_BIAS)
    y = cast(y, out.dtype.element_ty, INTERPRETED)
    tl.store(out + (row * out_stride + first)[:, None] + column[None, :], y, mask=inside)


@triton.jit
def _for_heads(weight, first, column, inside, HEAD_DIM: tl.constexpr, EACH: tl.constexpr):
    """Return the row of ``weight`` that all heads have, or where EACH those that begin at
    ``first``."""
    if EACH:
        at = weight + first[:, None] + column[None, :]
        return tl.load(at, mask=inside, other=0.0)
    else:
        return tl.load(weight + column, mask=column < HEAD_DIM, other=0.0)[None, :]


@triton.jit(do_not_specialize=["count"])
def _turn_heads(
    x,
    positions,
    cos,
    sin,
    out,
    count,
    x_stride,
    out_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    INTERPRETED: tl.constexpr,
    SOME: tl.constexpr,
    BLOCK: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64) * SOME + tl.arange(0, SOME)
    column = tl.arange(0, BLOCK)
    real = head < count
    inside = real[:, None] & (column < HEAD_DIM)[None, :]
    row, start = head // HEADS, head % HEADS * HEAD_DIM
    turned = column < 2 * HALF
    first, partner, pair = partners(column, HALF, INTERLEAVED)
    source = x + (row * x_stride + start)[:, None]
    own = tl.load(source + column[None, :], mask=inside, other=0.0)
    other = tl.load(source + partner[None, :], mask=inside, other=0.0)
    position = tl.load(positions + row, mask=real, other=0).to(tl.int64)
    angle = position[:, None] * HALF + pair[None, :]
    turns = real[:, None] & turned[None, :]
    c = tl.load(cos + angle, mask=turns, other=1.0)
    s = tl.load(sin + angle, mask=turns, other=0.0)
    y = tl.where(first[None, :], own * c - other * s, own * c + other * s)
    y = cast(tl.where(turned[None, :], y, own), out.dtype.element_ty, INTERPRETED)
    tl.debug_barrier()  # out may be x: every thread has read its components and their partners
    tl.store(out + (row * out_stride + start)[:, None] + column[None, :], y, mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def _write_heads(
    k,
    v,
    keys,
    values,
    key_scales,
    value_scales,
    slots,
    tokens,
    k_stride,
    v_stride,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    RUN: tl.constexpr,
    LEVELS: tl.constexpr,
    KEY_KIND: tl.constexpr,
    VALUE_KIND: tl.constexpr,
    QUANTIZED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    INTERPRETED: tl.constexpr,
    SOME: tl.constexpr,
    BLOCK: tl.constexpr,
):
    unit = tl.program_id(0) * SOME + tl.arange(0, SOME)
    token = (unit // (2 * KV_HEADS)).to(tl.int64)
    head = unit % KV_HEADS
    is_value = unit % (2 * KV_HEADS) >= KV_HEADS
    real = token < tokens
    column = tl.arange(0, BLOCK)
    inside = real[:, None] & (column < HEAD_DIM)[None, :]
    at = (head * HEAD_DIM)[:, None] + column[None, :]
    of_keys = inside & ~is_value[:, None]
    of_values = inside & is_value[:, None]
    x = tl.load(k + (token * k_stride)[:, None] + at, mask=of_keys, other=0.0)
    y = tl.load(v + (token * v_stride)[:, None] + at, mask=of_values, other=0.0)
    slot = tl.load(slots + token, mask=real, other=-1).to(tl.int64)
    store_heads(
        tl.where(is_value[:, None], y, x),
        keys,
        values,
        key_scales,
        value_scales,
        slot,
        head,
        ~is_value & (slot >= 0),
        is_value & (slot >= 0),
        KV_HEADS,
        HEAD_DIM,
        RUN,
        LEVELS,
        KEY_KIND,
        VALUE_KIND,
        QUANTIZED,
        BLOCK_SIZE,
        INTERPRETED,
    )
