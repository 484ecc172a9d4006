"""Products of 2:4 sparse weights in groups: of each four columns two have a code, and two are 0.

Codes and places lie by themselves, and become words as other quantized weights have them
(``packing.py``), with zeros, in registers: so one plane has every fourth column, and x is read in
that order (``spread_columns``). Tensor cores' own products with sparse matrices cannot be reached
from Triton. Bytes are saved, 3 bits a weight in the place of 4 and 5 in that of 8; no time, since
putting zeros back takes 8 instructions for four columns, in which an H100's memory brings as many.
None of that has been measured.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.operands import bytes_as, multiply, nibbles_as
from penstock.backends.cuda.kernels.tiling import launch_rows


@triton.jit
def sparse_section(
    x, w, places, scales, x_rows, w_rows, columns, few, first, last, stride, P: tl.constexpr,
):  # fmt: skip
    """Return ``W @ x.T`` over columns ``first .. last`` of k, float32 ``[COLS, ROWS]``.

    x has its columns by planes, and zeros from k on. w ``[n, padded / 4]``: two codes, uint8 of 4
    bits each or int16 of 8. places uint8 ``[n, padded / 8]``: of two planes' words, the first
    lowest, where each code is among its four columns, 2 bits each. scales float32 ``[groups, n]``,
    of groups of four planes; ``stride`` is n. ``P.whole``: a row is one group, and its scale is
    left to the caller.
    """
    ROWS: tl.constexpr = P.rows
    COLS: tl.constexpr = P.cols
    element: tl.constexpr = x.dtype.element_ty
    MASK: tl.constexpr = (1 << P.bits) - 1
    within = tl.arange(0, P.plane)
    sums = tl.zeros([COLS, ROWS], tl.float32)
    zero = tl.zeros([COLS], tl.int32)
    for at in tl.range(first, last, P.depth, num_stages=P.stages, loop_unroll_factor=P.unroll):
        both = tl.load(places + (w_rows // 2)[:, None] + (at // 8 + within)[None, :]).to(tl.int32)
        for piece in tl.static_range(2):
            here = at + piece * 4 * P.plane
            codes = tl.load(w + w_rows[:, None] + (here // 4 + within)[None, :]).to(tl.int32)
            one = (both >> (4 * piece)) & 3
            other = (both >> (4 * piece + 2)) & 3
            words = (codes & MASK) << (one * P.bits)
            words = words | (((codes >> P.bits) & MASK) << (other * P.bits))
            low = words.to(tl.int16)
            if P.bits == 4:
                a = nibbles_as(low, zero, zero, zero, zero, element, P.interpreted)
            else:
                a = bytes_as(low, zero, zero, element, P.interpreted)
                high = (words >> 16).to(tl.int16)
                a = a + bytes_as(high, zero, zero, element, P.interpreted)
            dots = sums
            if not P.whole:
                dots = tl.zeros([COLS, ROWS], tl.float32)
            for plane in tl.static_range(4):
                ks = here + plane * P.plane + within
                b = tl.load(x + x_rows[:, None] + ks[None, :], mask=few[:, None], other=0)
                dots = multiply(a[plane], b, dots, P.interpreted)
            if P.whole:
                sums = dots
            else:
                scale = tl.load(scales + (here // P.size) * stride + columns)
                sums += scale[:, None] * dots
    return sums


def spread_columns(x: Tensor, out: Tensor, plane: int) -> None:
    """Write x ``[rows, k]`` to out ``[rows, padded]`` of its type, contiguous, by planes: of each
    ``4 * plane`` columns ``4 * j + i`` to ``plane * i + j``, and zeros where there is none.

    Elements of a row of x are adjacent, and ``4 * plane`` divides ``padded``.
    """
    rows, padded = out.shape
    launch_rows(_spread, rows, padded, x, out, rows, x.shape[1], padded, x.stride(0), PLANE=plane)


@triton.jit(do_not_specialize=["rows"])
def _spread(
    x, out, rows, k, padded, x_stride,
    PLANE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    place = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    unit: tl.constexpr = 4 * PLANE
    column = place // unit * unit + place % PLANE * 4 + place % unit // PLANE
    value = tl.load(x + row * x_stride + column, mask=(row < rows) & (column < k), other=0)
    tl.store(out + row * padded + place, value, mask=(row < rows) & (place < padded))
