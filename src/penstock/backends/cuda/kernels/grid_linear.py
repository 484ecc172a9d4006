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
    x, w, windows, x_rows, w_rows, columns, few, first, last, k, windows_stride, P: tl.constexpr,
):  # fmt: skip
    """Return ``points @ x.T`` over columns ``first .. last`` of k, ``[COLS, ROWS]``.

    It is int32 and exact where ``P.ints``, that is where x holds int8 codes; else float32. windows
    int32 ``[k / 128, n]``; columns ``[COLS]``: which rows of W these are.
    """
    ROWS: tl.constexpr = P.rows
    COLS: tl.constexpr = P.cols
    element: tl.constexpr = x.dtype.element_ty
    PLANES: tl.constexpr = P.depth // P.plane
    WORD: tl.constexpr = 8 if PLANES == 1 else 16
    sums = tl.zeros([COLS, ROWS], tl.int32 if P.ints else tl.float32)
    zero = tl.zeros([COLS], tl.int32)
    for at in tl.range(first, last, P.depth, num_stages=P.stages, loop_unroll_factor=P.unroll):
        words = at * P.bits // WORD + tl.arange(0, P.plane)
        codes = tl.load(w + w_rows[:, None] + words[None, :])
        if PLANES == 1:
            a = (codes,)
        elif P.bits == 8:
            a = bytes_as(codes, zero, zero, element, P.interpreted)
        else:
            four = tl.load(windows + (at // P.depth) * windows_stride + columns)
            if P.ints:
                a = points_as_bytes(codes, four, P.interpreted)
            else:
                a = points_as(codes, four, element, P.interpreted)
        for plane in tl.static_range(PLANES):
            ks = at + plane * P.plane + tl.arange(0, P.plane)
            rows = x + x_rows[:, None] + ks[None, :]
            b = tl.load(rows, mask=seen(few, ks, k, P.even), other=0)
            sums = multiply(a[plane], b, sums, P.interpreted)
    return sums
