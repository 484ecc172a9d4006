"""Products of weights in blocks: sums of activations times points, scaled plane by plane."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.backends.cuda.kernels.block_operands import (
    block_points,
    least_of,
    mark_of,
    place_of,
    scale_of,
)
from penstock.backends.cuda.kernels.operands import multiply, seen


@triton.jit
def block_section(
    x, w, high, units, marks, x_rows, w_rows, columns, few, first, last, k, stride, P: tl.constexpr,
):  # fmt: skip
    """Return ``W @ x.T`` over columns ``first .. last`` of k, float32 ``[COLS, ROWS]``.

    ``P.bits``: those of a code in words. high uint8 ``[pieces, n, PLANE]``, units int32
    ``[k / 256, n]``, marks int32 ``[k / 128 * marks, n]``; ``stride`` is n.
    """
    ROWS: tl.constexpr = P.rows
    COLS: tl.constexpr = P.cols
    PLANE: tl.constexpr = P.plane
    LAYOUT: tl.constexpr = P.layout
    element: tl.constexpr = x.dtype.element_ty
    PLANES: tl.constexpr = 2 if P.bits == 8 else 4
    UNIT: tl.constexpr = PLANES * PLANE
    HIGH: tl.constexpr = LAYOUT.high
    MARKS: tl.constexpr = LAYOUT.marks
    LEAST: tl.constexpr = LAYOUT.least
    within = tl.arange(0, PLANE)
    sums = tl.zeros([COLS, ROWS], tl.float32)
    ones = tl.full([COLS, PLANE], 1.0, element)
    for at in tl.range(first, last, P.depth, num_stages=P.stages, loop_unroll_factor=P.unroll):
        unit = columns
        if LAYOUT.levels:
            unit = tl.load(units + (at // 256) * stride + columns)
        for hundred in tl.static_range(P.depth // 128):
            mark = _alone(unit)  # and then all that these columns have
            for each in tl.static_range(MARKS):
                row = (at // 128 + hundred) * MARKS + each
                mark = mark + (tl.load(marks + row * stride + columns),)
            for piece in tl.static_range(128 // UNIT):
                here = at + hundred * 128 + piece * UNIT
                words = tl.load(w + w_rows[:, None] + (here // PLANES + within)[None, :])
                bits = words
                if HIGH > 0:
                    if HIGH == 2 or (hundred * (128 // UNIT) + piece) % 2 == 0:
                        row = here * HIGH // (8 * PLANE)
                        there = (row.to(tl.int64) * stride + columns) * PLANE
                        whole = tl.load(high + there[:, None] + within[None, :])
                        bits = whole
                    else:
                        bits = whole >> 4
                a = block_points(words, bits, columns, P.bits, LAYOUT, element, P.interpreted)
                for plane in tl.static_range(PLANES):
                    ks = here + plane * PLANE + within
                    rows = x + x_rows[:, None] + ks[None, :]
                    b = tl.load(rows, mask=seen(few, ks, k, P.even), other=0)
                    nothing = tl.zeros([COLS, ROWS], tl.float32)
                    dots = multiply(a[plane], b, nothing, P.interpreted)
                    scale = _scale(mark, unit, piece * PLANES + plane, LAYOUT)
                    sums = _added(scale, dots, sums, COLS, ROWS)
                    if LEAST:
                        # The sums of x: a product, so that their order is that of others.
                        of_x = multiply(ones, b, nothing, P.interpreted)
                        least = _least(mark, unit, piece * PLANES + plane, LAYOUT)
                        sums = _added(least, of_x, sums, COLS, ROWS)
    return sums


@triton.jit
def _alone(one):
    return (one,)


@triton.jit
def _scale(mark, unit, index: tl.constexpr, LAYOUT: tl.constexpr):
    four = mark[1 + mark_of(LAYOUT, index, False)]
    return scale_of(four, unit, place_of(LAYOUT, index, False), LAYOUT)


@triton.jit
def _least(mark, unit, index: tl.constexpr, LAYOUT: tl.constexpr):
    four = mark[1 + mark_of(LAYOUT, index, True)]
    return least_of(four, unit, place_of(LAYOUT, index, True), LAYOUT)


@triton.jit
def _added(by, dots, sums, COLS: tl.constexpr, ROWS: tl.constexpr):
    """Return ``sums + by * dots``, rounded once."""
    return tl.fma(tl.broadcast_to(by[:, None], (COLS, ROWS)), dots, sums)
