"""Products of weights in groups of columns that share a scale."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.backends.cuda.kernels.operands import (
    byte_of,
    bytes_as,
    multiply,
    nibbles_as,
    nibbles_by_16,
    seen,
)


@triton.jit
def group_section(
    x, w, scales, zeros, x_scales, x_sums, x_rows, w_rows, ms, columns, few, first, last, k,
    stride, x_groups_stride, P: tl.constexpr,
):  # fmt: skip
    """Return ``W @ x.T`` over columns ``first .. last`` of k, float32 ``[COLS, ROWS]``.

    scales float32 ``[groups, n]``; zeros int32 ``[ceil(groups / 4), n]``, a byte a group; x_scales
    float32 and x_sums int32 (sums of codes) ``[groups, rows]``, where ``P.ints``. ``stride`` is n.

    ``P.whole``: a row is one group. Its scales are left to the caller: the result is
    ``points @ x.T``, int32 where ``P.ints``.
    """
    ROWS: tl.constexpr = P.rows
    COLS: tl.constexpr = P.cols
    element: tl.constexpr = x.dtype.element_ty
    PLANES: tl.constexpr = P.depth // P.plane
    SHARED: tl.constexpr = PLANES if P.whole else P.size // P.plane  # planes of a group
    WORD: tl.constexpr = 8 if PLANES == 1 else 16
    sums = tl.zeros([COLS, ROWS], tl.int32 if P.whole and P.ints else tl.float32)
    row_zero = tl.zeros([COLS], tl.int32)
    if P.whole and P.zeros:
        row_zero = byte_of(tl.load(zeros + columns), 0)
    for at in tl.range(first, last, P.depth, num_stages=P.stages, loop_unroll_factor=P.unroll):
        words = at * P.bits // WORD + tl.arange(0, P.plane)
        codes = tl.load(w + w_rows[:, None] + words[None, :])
        z = _alone(row_zero)  # and then one for each plane
        for plane in tl.static_range(PLANES):
            if P.zeros and not P.whole:
                zero = _zero(zeros, columns, (at + plane * P.plane) // P.size, stride)
                z = z + (zero,)
            else:
                z = z + (row_zero,)
        if PLANES == 1:
            a = (codes,)
        elif P.bits == 8:
            a = bytes_as(codes, z[1], z[2], element, P.interpreted)
        elif P.ints:
            a = nibbles_by_16(codes, P.interpreted)
        else:
            a = nibbles_as(codes, z[1], z[2], z[3], z[4], element, P.interpreted)
        for group in tl.static_range(PLANES // SHARED):
            dots = sums
            if not P.whole:
                dots = tl.zeros([COLS, ROWS], tl.int32 if P.ints else tl.float32)
            for of_group in tl.static_range(SHARED):
                ks = at + (group * SHARED + of_group) * P.plane + tl.arange(0, P.plane)
                rows = x + x_rows[:, None] + ks[None, :]
                b = tl.load(rows, mask=seen(few, ks, k, P.even), other=0)
                dots = multiply(a[group * SHARED + of_group], b, dots, P.interpreted)
            if P.whole:
                sums = dots
            else:
                index = at // P.size + group
                scale = tl.load(scales + index * stride + columns)
                if P.ints:
                    x_scale = tl.load(x_scales + index * x_groups_stride + ms, mask=few, other=0.0)
                    if P.bits == 4:
                        dots = dots >> 4
                    if P.zeros:
                        x_sum = tl.load(x_sums + index * x_groups_stride + ms, mask=few, other=0)
                        dots -= z[1 + group * SHARED][:, None] * x_sum[None, :]
                    sums += (x_scale[None, :] * scale[:, None]) * dots.to(tl.float32)
                else:
                    sums += scale[:, None] * dots
    if P.whole and P.ints:
        if P.bits == 4:
            sums = sums >> 4
        if P.zeros:
            x_sum = tl.load(x_sums + ms, mask=few, other=0)
            sums -= row_zero[:, None] * x_sum[None, :]
    return sums


@triton.jit
def _alone(zero):
    return (zero,)


@triton.jit
def _zero(zeros, columns, group, stride):
    """Return a group's zero points int32 ``[columns]``."""
    four = tl.load(zeros + (group // 4) * stride + columns)
    return (four << (24 - (group % 4) * 8)) >> 24
