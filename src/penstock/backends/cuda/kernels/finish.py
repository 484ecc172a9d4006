"""The end of every product, after a tile's sums: splits of K joined, bias, gate, the store.

Tiles are ``[columns of out, rows of out]``: weights are the left operand of the tensor cores'
products. Their side of 64 or 128 is then the one that hardware wants large, and rows, which may be
few, the one that may be as small as 8. Every number of rows takes the same kind of instruction.
"""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.backends.cuda.kernels.cast import cast

GROUP = tl.constexpr(8)
"""Tiles of rows that are worked on together, so that a tile of weights is read from L2 by them."""


@triton.jit
def place(tile, row_tiles, col_tiles):
    """Return which of so many tiles of rows, and of columns, a tile is of."""
    group = tile // (GROUP * col_tiles)
    width = tl.minimum(row_tiles - group * GROUP, GROUP)
    within = tile % (GROUP * col_tiles)
    return group * GROUP + within % width, within // width


@triton.jit
def park(partials, slot, sums, COLS: tl.constexpr, ROWS: tl.constexpr):
    """Write one split's ``sums`` ``[COLS, ROWS]`` where :func:`collect` finds them."""
    within = tl.arange(0, COLS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    tl.store(partials + slot.to(tl.int64) * (COLS * ROWS) + within, sums)


@triton.jit
def collect(
    partials, slot, STEP: tl.constexpr, SPLITS: tl.constexpr, COLS: tl.constexpr, ROWS: tl.constexpr
):
    """Add ``SPLITS`` parked tiles, every ``STEP``-th from ``slot`` on, in their order."""
    within = tl.arange(0, COLS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    total = tl.zeros([COLS, ROWS], partials.dtype.element_ty)
    for split in range(SPLITS):
        at = (slot + split * STEP).to(tl.int64) * (COLS * ROWS)
        # Past L1, which other multiprocessors' writes do not reach.
        total += tl.load(partials + at + within, cache_modifier=".cg")
    return total


@triton.jit
def is_last(counters, tile, SPLITS: tl.constexpr):
    """Return whether all other splits of ``tile`` have parked; its counter is then 0 again."""
    tl.debug_barrier()  # all threads' writes come before the count
    last = tl.atomic_add(counters + tile, 1, sem="acq_rel", scope="gpu") == SPLITS - 1
    if last:
        tl.store(counters + tile, 0)
    return last


@triton.jit
def activate(x, ACTIVATION: tl.constexpr):
    """Activate float32 ``x`` as ``penstock.backends.reference.numerics.activate`` does."""
    if ACTIVATION == "silu":
        factor = 1.0 / (1.0 + tl.exp(-x))
    elif ACTIVATION == "gelu_tanh":
        # (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u))
        factor = 1.0 / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    elif ACTIVATION == "sigmoid":
        factor = 1.0 / (1.0 + tl.exp(-x))
        x = tl.where(x == x, 1.0, x)
    elif ACTIVATION == "relu":
        x = tl.where(x < 0.0, 0.0, x)
        factor = 1.0
    elif ACTIVATION == "relu2":
        x = tl.where(x < 0.0, 0.0, x)
        factor = x
    elif ACTIVATION == "identity":
        factor = 1.0
    else:
        tl.static_assert(ACTIVATION == "gelu")
        factor = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    return x * factor


@triton.jit
def gated(gate, up, ACTIVATION: tl.constexpr, LIMIT: tl.constexpr, ALPHA: tl.constexpr):
    """Return ``activation(gate) * up``, or where that is "clamped" what
    :class:`~penstock.models.spec.ClampedSwiglu` makes of the two; all float32."""
    if ACTIVATION == "clamped":
        # Comparisons with NaN are false: it stays.
        gate = tl.where(gate > LIMIT, LIMIT, gate)
        up = tl.where(up > LIMIT, LIMIT, up)
        up = tl.where(up < -LIMIT, -LIMIT, up)
        return (up + 1.0) * (gate * (1.0 / (1.0 + tl.exp(-(gate * ALPHA)))))
    else:
        return activate(gate, ACTIVATION) * up


@triton.jit
def finish(
    sums,
    up,
    bias,
    out,
    out_stride,
    rows,
    few,
    ns,
    n,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    LIMIT: tl.constexpr,
    ALPHA: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Store ``sums`` float32 ``[columns, rows]``, or ``gated(sums, up)``, with bias before that.

    rows ``[ROWS]``: which rows of out these are, where ``few``; ns ``[COLS]``: which columns.
    """
    if HAS_BIAS:
        sums += tl.load(bias + ns, mask=ns < n, other=0.0)[:, None]
    if ACTIVATION != "none":
        if HAS_BIAS:
            up += tl.load(bias + n + ns, mask=ns < n, other=0.0)[:, None]
        sums = gated(sums, up, ACTIVATION, LIMIT, ALPHA)
    at = out + rows[None, :].to(tl.int64) * out_stride + ns[:, None]
    inside = (ns < n)[:, None] & few[None, :]
    tl.store(at, cast(sums, out.dtype.element_ty, INTERPRETED), mask=inside)
