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
    stride, x_groups_stride,
    BITS: tl.constexpr,
    SIZE: tl.constexpr,
    PLANE: tl.constexpr,
    WHOLE: tl.constexpr,
    ZEROS: tl.constexpr,
    INTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    UNROLL: tl.constexpr,
    STAGES: tl.constexpr,
    EVEN: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Return ``W @ x.T`` over columns ``first .. last`` of k, float32 ``[COLS, ROWS]``.

    scales float32 ``[groups, n]``; zeros int32 ``[ceil(groups / 4), n]``, a byte a group; x_scales
    float32 and x_sums int32 (sums of codes) ``[groups, rows]``, where ``INTS``. ``stride`` is n.

    ``WHOLE``: a row is one group. Its scales are left to the caller: the result is
    ``points @ x.T``, int32 where ``INTS``.
    """
    element: tl.constexpr = x.dtype.element_ty
    PLANES: tl.constexpr = DEPTH // PLANE
    SHARED: tl.constexpr = PLANES if WHOLE else SIZE // PLANE  # planes of a group
    WORD: tl.constexpr = 8 if PLANES == 1 else 16
    sums = tl.zeros([COLS, ROWS], tl.int32 if WHOLE and INTS else tl.float32)
    row_zero = tl.zeros([COLS], tl.int32)
    if WHOLE and ZEROS:
        row_zero = byte_of(tl.load(zeros + columns), 0)
    for at in tl.range(first, last, DEPTH, num_stages=STAGES, loop_unroll_factor=UNROLL):
        words = at * BITS // WORD + tl.arange(0, PLANE)
        codes = tl.load(w + w_rows[:, None] + words[None, :])
        z = _alone(row_zero)  # and then one for each plane
        for plane in tl.static_range(PLANES):
            if ZEROS and not WHOLE:
                zero = _zero(zeros, columns, (at + plane * PLANE) // SIZE, stride)
                z = z + (zero,)
            else:
                z = z + (row_zero,)
        if PLANES == 1:
            a = (codes,)
        elif BITS == 8:
            a = bytes_as(codes, z[1], z[2], element, INTERPRETED)
        elif INTS:
            a = nibbles_by_16(codes, INTERPRETED)
        else:
            a = nibbles_as(codes, z[1], z[2], z[3], z[4], element, INTERPRETED)
        for group in tl.static_range(PLANES // SHARED):
            dots = sums
            if not WHOLE:
                dots = tl.zeros([COLS, ROWS], tl.int32 if INTS else tl.float32)
            for of_group in tl.static_range(SHARED):
                ks = at + (group * SHARED + of_group) * PLANE + tl.arange(0, PLANE)
                rows = x + x_rows[:, None] + ks[None, :]
                b = tl.load(rows, mask=seen(few, ks, k, EVEN), other=0)
                dots = multiply(a[group * SHARED + of_group], b, dots, INTERPRETED)
            if WHOLE:
                sums = dots
            else:
                index = at // SIZE + group
                scale = tl.load(scales + index * stride + columns)
                if INTS:
                    x_scale = tl.load(x_scales + index * x_groups_stride + ms, mask=few, other=0.0)
                    if BITS == 4:
                        dots = dots >> 4
                    if ZEROS:
                        x_sum = tl.load(x_sums + index * x_groups_stride + ms, mask=few, other=0)
                        dots -= z[1 + group * SHARED][:, None] * x_sum[None, :]
                    sums += (x_scale[None, :] * scale[:, None]) * dots.to(tl.float32)
                else:
                    sums += scale[:, None] * dots
    if WHOLE and INTS:
        if BITS == 4:
            sums = sums >> 4
        if ZEROS:
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
