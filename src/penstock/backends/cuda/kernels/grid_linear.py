"""Products of weights on a grid: sums of whole numbers, or of activations times whole numbers."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.backends.cuda.kernels.operands import (
    bytes_as,
    multiply,
    windows_as,
    windows_as_bytes,
)


@triton.jit
def grid_section(
    x,
    w,
    windows,
    x_rows,
    w_rows,
    columns,
    few,
    first,
    last,
    k,
    windows_stride,
    BITS: tl.constexpr,
    INTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """``points @ x.T`` over columns ``first .. last`` of k, ``[COLS, ROWS]``.

    int32 and exact where ``INTS``, that is where x holds int8 codes; else float32. columns
    ``[COLS]``: which rows of W these are. ``DEPTH`` is a multiple of 128.
    """
    element: tl.constexpr = x.dtype.element_ty
    sums = tl.zeros([COLS, ROWS], tl.int32 if INTS else tl.float32)
    for at in tl.range(first, last, DEPTH, num_stages=STAGES):
        if BITS == 8:
            ks = at + tl.arange(0, DEPTH)
            codes = tl.load(w + w_rows[:, None] + ks[None, :])
            seen = few[:, None] & (ks < k)[None, :]
            b = tl.load(x + x_rows[:, None] + ks[None, :], mask=seen, other=0)
            if INTS:
                sums = multiply(codes, b, sums, INTERPRETED)
            else:
                a = bytes_as(codes, element, INTERPRETED)
                sums = multiply(a, b, sums, INTERPRETED)
        else:
            for word in tl.static_range(DEPTH // 128):
                row = at // 128 + word
                four = tl.load(windows + row.to(tl.int64) * windows_stride + columns)
                for unit in tl.static_range(2):
                    start = at + word * 128 + unit * 64
                    ks = start + tl.arange(0, 32)
                    packed = tl.load(w + w_rows[:, None] + (start // 2 + tl.arange(0, 32))[None, :])
                    at_low = x + x_rows[:, None] + ks[None, :]
                    b_low = tl.load(at_low, mask=few[:, None] & (ks < k)[None, :], other=0)
                    at_high = at_low + 32
                    b_high = tl.load(at_high, mask=few[:, None] & (ks < k - 32)[None, :], other=0)
                    low_window = (four >> (unit * 16)) & 255
                    high_window = (four >> (unit * 16 + 8)) & 255
                    if INTS:
                        low, high = windows_as_bytes(packed, low_window, high_window, INTERPRETED)
                    else:
                        low, high = windows_as(
                            packed, low_window, high_window, element, INTERPRETED
                        )
                    sums = multiply(low, b_low, sums, INTERPRETED)
                    sums = multiply(high, b_high, sums, INTERPRETED)
    return sums
