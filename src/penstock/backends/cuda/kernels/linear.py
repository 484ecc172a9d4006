"""Products of floating-point weights."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.backends.cuda.kernels.operands import multiply, seen


@triton.jit
def linear_section(
    x,
    w,
    x_rows,
    w_rows,
    few,
    first,
    last,
    k,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    EVEN: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Return ``W @ x.T`` over columns ``first .. last`` of k, float32 ``[COLS, ROWS]``.

    x_rows ``[ROWS]`` and w_rows ``[COLS]``: where rows start, in elements; few: which of x exist.
    """
    sums = tl.zeros([COLS, ROWS], tl.float32)
    for at in tl.range(first, last, DEPTH, num_stages=STAGES):
        ks = at + tl.arange(0, DEPTH)
        a = tl.load(w + w_rows[:, None] + ks[None, :])
        inside = seen(few, ks, k, EVEN)
        b = tl.load(x + x_rows[:, None] + ks[None, :], mask=inside, other=0)
        if a.dtype != b.dtype:
            a, b = a.to(tl.float32), b.to(tl.float32)
        sums = multiply(a, b, sums, INTERPRETED)
    return sums
