"""Products of weights on a grid: sums of whole numbers, or of activations times whole numbers."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.backends.cuda.kernels.operands import (
    bytes_as,
    multiply,
    points_as,
    points_as_bytes,
    seen,
)


@triton.jit
def grid_section(
    x, w, windows, x_rows, w_rows, columns, few, first, last, k, windows_stride,
    BITS: tl.constexpr,
    PLANE: tl.constexpr,
    INTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    UNROLL: tl.constexpr,
    STAGES: tl.constexpr,
    EVEN: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Return ``points @ x.T`` over columns ``first .. last`` of k, ``[COLS, ROWS]``.

    It is int32 and exact where ``INTS``, that is where x holds int8 codes; else float32. windows
    int32 ``[k / 128, n]``; columns ``[COLS]``: which rows of W these are.
    """
    element: tl.constexpr = x.dtype.element_ty
    PLANES: tl.constexpr = DEPTH // PLANE
    WORD: tl.constexpr = 8 if PLANES == 1 else 16
    sums = tl.zeros([COLS, ROWS], tl.int32 if INTS else tl.float32)
    zero = tl.zeros([COLS], tl.int32)
    for at in tl.range(first, last, DEPTH, num_stages=STAGES, loop_unroll_factor=UNROLL):
        words = at * BITS // WORD + tl.arange(0, PLANE)
        codes = tl.load(w + w_rows[:, None] + words[None, :])
        if PLANES == 1:
            a = (codes,)
        elif BITS == 8:
            a = bytes_as(codes, zero, zero, element, INTERPRETED)
        else:
            four = tl.load(windows + (at // DEPTH) * windows_stride + columns)
            if INTS:
                a = points_as_bytes(codes, four, INTERPRETED)
            else:
                a = points_as(codes, four, element, INTERPRETED)
        for plane in tl.static_range(PLANES):
            ks = at + plane * PLANE + tl.arange(0, PLANE)
            rows = x + x_rows[:, None] + ks[None, :]
            b = tl.load(rows, mask=seen(few, ks, k, EVEN), other=0)
            sums = multiply(a[plane], b, sums, INTERPRETED)
    return sums
