"""QK-norm, rotation and the cache write, a few heads a program."""

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


def rope_write(
    qkv: Tensor,
    q: Tensor,
    cache: LayerArrays,
    positions: Tensor,
    slots: Tensor,
    rope: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    interleaved: bool = False,
) -> None:
    """Run ``plan.ops.RopeWrite``. Tokens whose slot is negative write nothing to the cache.

    qkv float32 ``[T, (heads + 2 * kv_heads) * head_dim]``, q ``[T, heads * head_dim]``; positions
    and slots int32 ``[T]``; rope: cosines and sines, float32 ``[positions, dim / 2]``, of
    neighbours where ``interleaved``; norms: weights of queries and keys, float32 ``[head_dim]``.
    """
    tokens = len(qkv)
    into = Written.of(cache)
    kv_heads, head_dim = into.kv_heads, into.head_dim
    heads = q.shape[1] // head_dim
    cos, sin = rope
    q_norm, k_norm = norms or (cos, cos)
    _rope_write[(triton.cdiv(tokens * (heads + 2 * kv_heads), _HEADS),)](
        qkv,
        q,
        into.keys,
        into.values,
        into.key_scales,
        into.value_scales,
        positions,
        slots,
        cos,
        sin,
        q_norm,
        k_norm,
        tokens,
        qkv.stride(0),
        q.stride(0),
        HEADS=heads,
        HALF=cos.shape[1],
        INTERLEAVED=interleaved,
        EPS=eps,
        HAS_NORM=norms is not None,
        **into.constants,
        BLOCK_SIZE=BLOCK_SIZE,
        INTERPRETED=INTERPRETED,
        SOME=_HEADS,
        BLOCK=triton.next_power_of_2(head_dim),
        num_warps=2,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["tokens"])
def _rope_write(
    qkv,
    q,
    keys,
    values,
    key_scales,
    value_scales,
    positions,
    slots,
    cos,
    sin,
    q_norm,
    k_norm,
    tokens,
    qkv_stride,
    q_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    EPS: tl.constexpr,
    HAS_NORM: tl.constexpr,
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
    row = tl.program_id(0) * SOME + tl.arange(0, SOME)
    token = (row // (HEADS + 2 * KV_HEADS)).to(tl.int64)
    head = row % (HEADS + 2 * KV_HEADS)
    real = token < tokens
    column = tl.arange(0, BLOCK)
    is_query = head < HEADS
    is_value = head >= HEADS + KV_HEADS
    within = column < HEAD_DIM
    inside = real[:, None] & within[None, :]

    turned = column < 2 * HALF
    first, partner, pair = partners(column, HALF, INTERLEAVED)
    source = qkv + (token * qkv_stride + head * HEAD_DIM)[:, None]
    x = tl.load(source + column[None, :], mask=inside, other=0.0)
    y = tl.load(source + partner[None, :], mask=inside, other=0.0)
    if HAS_NORM:
        scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / HEAD_DIM + EPS)
        own = _norm_weights(q_norm, k_norm, is_query, column, within)
        others = _norm_weights(q_norm, k_norm, is_query, partner, within)
        x = tl.where(is_value[:, None], x, x * scale[:, None] * own)
        y = tl.where(is_value[:, None], y, y * scale[:, None] * others)
    position = tl.load(positions + token, mask=real, other=0).to(tl.int64)
    angle = position[:, None] * HALF + pair[None, :]
    turns = real[:, None] & turned[None, :]
    c = tl.load(cos + angle, mask=turns, other=1.0)
    s = tl.load(sin + angle, mask=turns, other=0.0)
    rotated = tl.where(first[None, :], x * c - y * s, x * c + y * s)
    x = tl.where(is_value[:, None] | ~turned[None, :], x, rotated)

    target = q + (token * q_stride + head * HEAD_DIM)[:, None] + column[None, :]
    tl.store(target, cast(x, q.dtype.element_ty, INTERPRETED), mask=inside & is_query[:, None])

    slot = tl.load(slots + token, mask=real, other=-1).to(tl.int64)
    is_key = ~(is_query | is_value) & (slot >= 0)
    is_value = is_value & (slot >= 0)
    kv_head = tl.where(is_value, head - HEADS - KV_HEADS, head - HEADS)
    store_heads(
        x,
        keys,
        values,
        key_scales,
        value_scales,
        slot,
        kv_head,
        is_key,
        is_value,
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


@triton.jit
def _norm_weights(q_norm, k_norm, is_query, column, within):
    """Return each head's weights at ``column``, ``[heads, columns]``."""
    of_queries = tl.load(q_norm + column, mask=within, other=0.0)
    of_keys = tl.load(k_norm + column, mask=within, other=0.0)
    return tl.where(is_query[:, None], of_queries[None, :], of_keys[None, :])
