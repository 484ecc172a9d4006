"""``plan.ops.Route``: which experts a token is given to, and the share of each."""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.tiling import rows_at_once
from penstock.models.spec import Routing

_ROWS = rows_at_once(1)

_NOTHING = tl.constexpr(-(2**31))
"""Key of what is no expert of the row, or has been chosen: below every other."""
_NAN = tl.constexpr(-(2**31) + 2)


def route(
    logits: Tensor, routing: Routing, choice_bias: Tensor | None, ids: Tensor, shares: Tensor
) -> None:
    """Run ``plan.ops.Route``: logits float32 ``[T, experts]``, choice_bias float32 ``[experts]``;
    ids int32 and shares float32 ``[T, k]`` receive the result."""
    rows, experts = logits.shape
    if rows == 0:
        return
    size = experts // routing.groups
    groups, columns = triton.next_power_of_2(routing.groups), triton.next_power_of_2(size)
    _route[(triton.cdiv(rows, _ROWS),)](
        logits,
        logits if choice_bias is None else choice_bias,
        ids,
        shares,
        rows,
        logits.stride(0),
        ids.stride(0),
        shares.stride(0),
        routing.normalize_eps,
        routing.normalize_least,
        routing.scale,
        float(np.float32(2 * routing.jitter)),
        SCORES=routing.scores,
        HAS_BIAS=choice_bias is not None,
        NORMALIZE=routing.normalize,
        TOP2=routing.groups > 1 and routing.group_score == "top2",
        GROUPS=routing.groups,
        GROUPS_CHOSEN=routing.groups_chosen,
        SIZE=size,
        CHOSEN=ids.shape[1],
        ROWS=_ROWS,
        LINES=groups,
        COLUMNS=columns,
        PLACES=triton.next_power_of_2(ids.shape[1]),
        num_warps=max(1, groups * columns // 512),
        enable_fp_fusion=False,
    )


@triton.jit
def _key(value):
    """Return integers in the order of float32 ``value``: zeros are equal, NaN is the lowest."""
    value = tl.where(value == 0.0, 0.0, value)
    bits = value.to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(value != value, _NAN, key)


@triton.jit
def _value(key):
    """Return the float32 of a :func:`_key`; NaN again for that of NaN."""
    bits = tl.where(key < 0, key ^ 0x7FFFFFFF, key)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _ranked(key, ids):
    """Return keys with what decides between equal ones: the lower id is the higher."""
    return (key.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)


@triton.jit
def _highest(ranked):
    """Return the id of the highest of each row."""
    return 0x7FFFFFFF - tl.max(ranked, axis=1).to(tl.int32)


@triton.jit
def _without(ranked, ids, chosen):
    """Return ``ranked`` with what is chosen of each row below all others."""
    return tl.where(ids == chosen[:, None], -(2**63), ranked)


@triton.jit
def _sum(x, ROWS: tl.constexpr, CHOSEN: tl.constexpr, PLACES: tl.constexpr):
    """Return the sums of the first ``CHOSEN`` columns of x, in their order."""
    places = tl.arange(0, PLACES)[None, :]
    total = tl.zeros([ROWS], tl.float32)
    for place in tl.static_range(CHOSEN):
        total += tl.sum(tl.where(places == place, x, 0.0), axis=1)
    return total[:, None]


@triton.jit
def _logistic(x):
    return tl.div_rn(tl.full(x.shape, 1.0, tl.float32), 1.0 + tl.exp(-x))


@triton.jit
def _by(x, divisor):
    return tl.div_rn(x, tl.broadcast_to(divisor, x.shape))


@triton.jit
def _in_chosen_groups(
    key,
    TOP2: tl.constexpr, GROUPS: tl.constexpr, GROUPS_CHOSEN: tl.constexpr,
    ROWS: tl.constexpr, LINES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Return ``key`` ``[ROWS, LINES * COLUMNS]``, of ``LINES`` groups, with nothing where a group
    is not chosen."""
    lines = tl.reshape(key, [ROWS * LINES, COLUMNS])
    best = tl.max(lines, axis=1)
    if TOP2:
        columns = tl.arange(0, COLUMNS)[None, :]
        at = tl.min(tl.where(lines == best[:, None], columns, COLUMNS), axis=1)
        second = tl.max(tl.where(columns == at[:, None], _NOTHING, lines), axis=1)
        best = tl.where(best == _NOTHING, _NOTHING, _key(_value(best) + _value(second)))
    groups = tl.arange(0, LINES)[None, :]
    best = tl.where(groups < GROUPS, tl.reshape(best, [ROWS, LINES]), _NOTHING)
    ranked = _ranked(best, groups)
    within = tl.arange(0, LINES * COLUMNS)[None, :] // COLUMNS
    kept = tl.full([ROWS, LINES * COLUMNS], _NOTHING, tl.int32)
    for _ in tl.static_range(GROUPS_CHOSEN):
        chosen = _highest(ranked)
        ranked = _without(ranked, groups, chosen)
        kept = tl.where(within == chosen[:, None], key, kept)
    return kept


@triton.jit
def _choose(
    key, expert, z, from_row, left, there, near,
    SCORES: tl.constexpr, ROWS: tl.constexpr, CHOSEN: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """Return the ids of each row's highest keys, ``[ROWS, PLACES]``, and, of sparsemixer, their
    shares; ``left``: which columns are experts of a row."""
    ranked = _ranked(key, expert)
    places = tl.arange(0, PLACES)[None, :]
    chosen = tl.zeros([ROWS, PLACES], tl.int32)
    share = tl.zeros([ROWS, PLACES], tl.float32)
    for place in range(CHOSEN):
        best = _highest(ranked)
        ranked = _without(ranked, expert, best)
        chosen = tl.where(places == place, best[:, None], chosen)
        if SCORES == "sparsemixer":
            top = tl.load(from_row + best[:, None], mask=there, other=0.0)
            below = tl.div_rn(top - z, tl.maximum(tl.abs(z), top))
            part = tl.where(left & ~(below > near), tl.exp(z - top), 0.0)
            one = tl.full([ROWS, 1], 1.0, tl.float32)
            mixed = tl.div_rn(one, tl.sum(part, axis=1)[:, None])
            share = tl.where(places == place, mixed, share)
            left = left & (expert != best[:, None])
    return chosen, share


@triton.jit
def _shares(
    z, most, total,
    SCORES: tl.constexpr, ROWS: tl.constexpr, CHOSEN: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """Return the scores of the chosen, whose logits are ``z`` ``[ROWS, PLACES]``."""
    if SCORES == "softmax":
        share = _by(tl.exp(z - most), total)
    elif SCORES == "sigmoid":
        share = _logistic(z)
    else:
        tl.static_assert(SCORES == "softmax_chosen")
        exponential = tl.exp(z - tl.max(z, axis=1)[:, None])
        share = _by(exponential, _sum(exponential, ROWS, CHOSEN, PLACES))
    return share


@triton.jit(do_not_specialize=["rows", "eps", "least", "scale", "near"])
def _route(
    logits, bias, ids, shares, rows, stride, ids_stride, shares_stride, eps, least, scale, near,
    SCORES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    TOP2: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUPS_CHOSEN: tl.constexpr,
    SIZE: tl.constexpr,
    CHOSEN: tl.constexpr,
    ROWS: tl.constexpr,
    LINES: tl.constexpr,
    COLUMNS: tl.constexpr,
    PLACES: tl.constexpr,
):  # fmt: skip
    """Route ``ROWS`` rows a program. Experts are in ``LINES * COLUMNS`` columns, a group after the
    other; columns that are no expert have the id of one, and decide nothing."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    there = row < rows
    from_row = logits + row.to(tl.int64) * stride
    column = tl.arange(0, LINES * COLUMNS)[None, :]
    group, within = column // COLUMNS, column % COLUMNS
    real = (group < GROUPS) & (within < SIZE)
    expert = tl.where(real, group * SIZE + within, LINES * COLUMNS + column)
    z = tl.load(from_row + expert, mask=there & real, other=float("-inf"))
    spoilt = tl.max((z != z).to(tl.int32), axis=1)[:, None] > 0
    most = tl.max(z, axis=1)[:, None]
    total = tl.zeros([ROWS, 1], tl.float32)
    each = z
    if SCORES == "softmax":
        each = tl.where(real, tl.exp(z - most), 0.0)
        total = tl.sum(each, axis=1)[:, None]
    decides = z
    if HAS_BIAS or TOP2:
        if SCORES == "softmax":
            decides = _by(each, total)
        elif SCORES == "sigmoid":
            decides = _logistic(z)
    if HAS_BIAS:
        decides += tl.load(bias + expert, mask=real, other=0.0)
    key = tl.where(real, _key(decides), _NOTHING)
    if GROUPS > 1:
        key = _in_chosen_groups(
            key, TOP2, GROUPS, GROUPS_CHOSEN, ROWS, LINES, COLUMNS
        )  # fmt: skip
    chosen, share = _choose(
        key, expert, z, from_row, real & there, there, near, SCORES, ROWS, CHOSEN, PLACES
    )  # fmt: skip
    places = tl.arange(0, PLACES)[None, :]
    kept = there & (places < CHOSEN)
    if SCORES != "sparsemixer":
        z = tl.load(from_row + chosen, mask=kept, other=float("-inf"))
        share = _shares(z, most, total, SCORES, ROWS, CHOSEN, PLACES)
    if NORMALIZE:
        total = _sum(share, ROWS, CHOSEN, PLACES)
        total = tl.where(total < least, least, total)  # a sum that is NaN stays one
        share = _by(share, total + eps)
    share = tl.where(spoilt, float("nan"), share * scale)
    tl.store(ids + row.to(tl.int64) * ids_stride + places, chosen, mask=kept)
    tl.store(shares + row.to(tl.int64) * shares_stride + places, share, mask=kept)
