"""Products of weights in groups of columns that share a scale."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.backends.cuda.kernels.operands import (
    bytes_as,
    bytes_less,
    halves_as,
    halves_by_16,
    multiply,
)


@triton.jit
def group_section(
    x,
    w,
    scales,
    zeros,
    x_scales,
    x_sums,
    x_rows,
    w_rows,
    ms,
    columns,
    few,
    first,
    last,
    k,
    groups_stride,
    x_groups_stride,
    BITS: tl.constexpr,
    SIZE: tl.constexpr,
    WHOLE: tl.constexpr,
    ZEROS: tl.constexpr,
    INTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    STAGES: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """``W @ x.T`` over columns ``first .. last`` of k, float32 ``[COLS, ROWS]``.

    scales float32 ``[groups, n]``; zeros int32 ``[ceil(groups / 4), n]``, a byte a group; x_scales
    float32 and x_sums int32 (sums of codes) ``[groups, rows]``, where ``INTS``. One iteration takes
    a group of 8-bit codes, or two of 4-bit ones: the low and the high halves of bytes.

    ``WHOLE``: a row is one group, and ``SIZE`` only how much of it is taken at once. Its scales are
    left to the caller: the result is ``points @ x.T``, int32 where ``INTS``.
    """
    element: tl.constexpr = x.dtype.element_ty
    sums = tl.zeros([COLS, ROWS], tl.int32 if WHOLE and INTS else tl.float32)
    zero = tl.zeros([COLS], tl.int32)
    if WHOLE and ZEROS:
        zero = _zeros(zeros, columns, 0, groups_stride)
    for at in tl.range(first, last, SIZE * (8 // BITS), num_stages=STAGES):
        ks = at + tl.arange(0, SIZE)
        group = at // SIZE
        at_low = x + x_rows[:, None] + ks[None, :]
        b = tl.load(at_low, mask=few[:, None] & (ks < k)[None, :], other=0)
        if BITS == 8:
            codes = tl.load(w + w_rows[:, None] + ks[None, :])
            if ZEROS and not WHOLE:
                zero = _zeros(zeros, columns, group, groups_stride)
            if INTS:
                low = codes
            elif ZEROS:
                low = bytes_less(codes, zero, element, INTERPRETED)
            else:
                low = bytes_as(codes, element, INTERPRETED)
            sums = _add_group(
                sums, low, b, zero, scales, x_scales, x_sums, group, ms, columns, few,
                groups_stride, x_groups_stride, 0, WHOLE, ZEROS, INTS, ROWS, COLS, INTERPRETED,
            )  # fmt: skip
        else:
            packed = tl.load(w + w_rows[:, None] + (at // 2 + tl.arange(0, SIZE))[None, :])
            b_high = tl.load(at_low + SIZE, mask=few[:, None] & (ks < k - SIZE)[None, :], other=0)
            high_zero = zero
            if ZEROS and not WHOLE:
                zero = _zeros(zeros, columns, group, groups_stride)
                high_zero = _zeros(zeros, columns, group + 1, groups_stride)
            if INTS:
                low, high = halves_by_16(packed, INTERPRETED)
            else:
                low, high = halves_as(packed, zero, high_zero, element, INTERPRETED)
            sums = _add_group(
                sums, low, b, zero, scales, x_scales, x_sums, group, ms, columns, few,
                groups_stride, x_groups_stride, 4, WHOLE, ZEROS, INTS, ROWS, COLS, INTERPRETED,
            )  # fmt: skip
            sums = _add_group(
                sums, high, b_high, high_zero, scales, x_scales, x_sums, group + 1, ms, columns,
                few, groups_stride, x_groups_stride, 4, WHOLE, ZEROS, INTS, ROWS, COLS, INTERPRETED,
            )  # fmt: skip
    if WHOLE and INTS:
        if BITS == 4:
            sums = sums >> 4
        if ZEROS:
            x_sum = tl.load(x_sums + ms, mask=few, other=0)
            sums -= zero[:, None] * x_sum[None, :]
    return sums


@triton.jit
def _zeros(zeros, columns, group, groups_stride):
    """A group's zero points int32 ``[columns]``."""
    four = tl.load(zeros + (group // 4) * groups_stride + columns)
    return (four << (24 - (group % 4) * 8)) >> 24


@triton.jit
def _add_group(
    sums,
    a,
    b,
    zero,
    scales,
    x_scales,
    x_sums,
    group,
    ms,
    columns,
    few,
    groups_stride,
    x_groups_stride,
    SHIFT: tl.constexpr,
    WHOLE: tl.constexpr,
    ZEROS: tl.constexpr,
    INTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """``sums`` and one group's product, scaled; integers are of codes times ``2 ** SHIFT``."""
    if WHOLE:
        sums = multiply(a, b, sums, INTERPRETED)
    else:
        scale = tl.load(scales + group * groups_stride + columns)
        if INTS:
            dots = multiply(a, b, tl.zeros([COLS, ROWS], tl.int32), INTERPRETED) >> SHIFT
            x_scale = tl.load(x_scales + group * x_groups_stride + ms, mask=few, other=0.0)
            if ZEROS:
                x_sum = tl.load(x_sums + group * x_groups_stride + ms, mask=few, other=0)
                dots -= zero[:, None] * x_sum[None, :]
            sums += (x_scale[None, :] * scale[:, None]) * dots.to(tl.float32)
        else:
            nil = tl.zeros([COLS, ROWS], tl.float32)
            sums += scale[:, None] * multiply(a, b, nil, INTERPRETED)
    return sums
