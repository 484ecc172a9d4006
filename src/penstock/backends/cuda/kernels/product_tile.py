"""One tile of a product, of whichever rows and of whichever matrix."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.backends.cuda.kernels.block_linear import block_section
from penstock.backends.cuda.kernels.codebook_linear import codebook_section
from penstock.backends.cuda.kernels.finish import collect, finish, is_last, park
from penstock.backends.cuda.kernels.grid_linear import grid_section
from penstock.backends.cuda.kernels.group_linear import group_section
from penstock.backends.cuda.kernels.lattice_linear import lattice_section
from penstock.backends.cuda.kernels.linear import linear_section
from penstock.backends.cuda.kernels.sparse_linear import sparse_section


@triton.jit
def _section(
    x, w, high, marks, scales, x_scales, x_sums, ms, columns, few, first, last, k,
    x_stride, w_stride, marks_stride, x_groups_stride, P: tl.constexpr,
):  # fmt: skip
    """Return a format's sums ``[COLS, ROWS]`` over columns ``first .. last`` of k."""
    x_rows = ms.to(tl.int64) * x_stride
    w_rows = columns.to(tl.int64) * w_stride
    if P.format == "float":
        sums = linear_section(
            x, w, x_rows, w_rows, few, first, last, k,
            P.rows, P.cols, P.depth, P.stages, P.even, P.interpreted,
        )  # fmt: skip
    elif P.format == "grid":
        sums = grid_section(
            x, w, marks, x_rows, w_rows, columns, few, first, last, k, marks_stride, P,
        )  # fmt: skip
    elif P.format == "blocks":
        sums = block_section(
            x, w, high, scales, marks, x_rows, w_rows, columns, few, first, last, k, marks_stride,
            P,
        )  # fmt: skip
    elif P.format == "codebook":
        sums = codebook_section(
            x, w, high, scales, x_rows, w_rows, columns, few, first, last, k, P
        )  # fmt: skip
    elif P.format == "sparse":
        sums = sparse_section(
            x, w, high, scales, x_rows, w_rows, columns, few, first, last, marks_stride, P
        )  # fmt: skip
    elif P.format == "lattice":
        sums = lattice_section(x, w, high, marks, x_rows, w_rows, few, first, last, P)
    else:
        tl.static_assert(P.format == "group")
        sums = group_section(
            x, w, scales, marks, x_scales, x_sums, x_rows, w_rows, ms, columns, few, first, last, k,
            marks_stride, x_groups_stride, P,
        )  # fmt: skip
    return sums


@triton.jit
def _total(
    x, w, high, marks, scales, x_scales, x_sums, ms, columns, few, k, padded,
    x_stride, w_stride, marks_stride, x_groups_stride, P: tl.constexpr,
):  # fmt: skip
    """Compute all splits in one program, and add them as ``collect`` does."""
    if P.splits == 1:
        total = _section(
            x, w, high, marks, scales, x_scales, x_sums, ms, columns, few, 0, padded, k,
            x_stride, w_stride, marks_stride, x_groups_stride, P,
        )  # fmt: skip
    else:
        COLS: tl.constexpr = P.cols
        ROWS: tl.constexpr = P.rows
        total = tl.zeros([COLS, ROWS], tl.float32)
        for split in range(P.splits):
            first = split * P.length
            total += _section(
                x, w, high, marks, scales, x_scales, x_sums, ms, columns, few,
                first, tl.minimum(first + P.length, padded), k,
                x_stride, w_stride, marks_stride, x_groups_stride, P,
            )  # fmt: skip
    return total


@triton.jit
def _scaled(
    total, scales, x_scales, ms, columns, few, P: tl.constexpr,
):  # fmt: skip
    """Return float32 sums, times the scales of rows that have one."""
    if P.format == "grid" or P.whole:
        scale = tl.load(scales + columns)[:, None]
        if P.ints:
            x_scale = tl.load(x_scales + ms, mask=few, other=0.0)
            sums = total.to(tl.float32) * (x_scale[None, :] * scale)
        else:
            sums = total * scale
    else:
        sums = total
    return sums


@triton.jit
def product_tile(
    x, w, high, marks, scales, x_scales, x_sums, bias, out, partials, counters,
    tile, split, xs, rows, few, ns, base, n, k, padded,
    x_stride, w_stride, marks_stride, x_groups_stride, out_stride, P: tl.constexpr,
):  # fmt: skip
    """Compute columns ns ``[COLS]`` of rows ``[ROWS]`` of out, those of them that are ``few``.

    xs ``[ROWS]``: which rows of x they are made of; base: the row of w, and of what goes with its
    rows, where the matrix begins. Where ``P.parallel``, one ``split`` alone, and the last one of a
    ``tile`` that is done finishes it. Otherwise see ``product_kernel``.
    """
    # Columns past the end repeat the last one: their sums are not stored.
    columns = tl.minimum(ns, n - 1) + base
    ACTIVATION: tl.constexpr = P.activation
    GATED: tl.constexpr = ACTIVATION != "none"
    if P.parallel:
        PARTS: tl.constexpr = 2 if GATED else 1
        first = split * P.length
        last = tl.minimum(first + P.length, padded)
        for part in tl.static_range(PARTS):
            sums = _section(
                x, w, high, marks, scales, x_scales, x_sums, xs, columns + part * n, few,
                first, last, k,
                x_stride, w_stride, marks_stride, x_groups_stride, P,
            )  # fmt: skip
            park(partials, (tile * P.splits + split) * PARTS + part, sums, P.cols, P.rows)
        if is_last(counters, tile, P.splits):
            slot = tile * P.splits * PARTS
            total = collect(partials, slot, PARTS, P.splits, P.cols, P.rows)
            total = _scaled(total, scales, x_scales, xs, columns, few, P)
            up = total
            if GATED:
                up = collect(partials, slot + 1, PARTS, P.splits, P.cols, P.rows)
                up = _scaled(up, scales, x_scales, xs, columns + n, few, P)
            finish(
                total, up, bias + base, out, out_stride, rows, few, ns, n,
                P.has_bias, ACTIVATION, P.limit, P.alpha, P.interpreted,
            )  # fmt: skip
    else:
        total = _total(
            x, w, high, marks, scales, x_scales, x_sums, xs, columns, few, k, padded,
            x_stride, w_stride, marks_stride, x_groups_stride, P,
        )  # fmt: skip
        total = _scaled(total, scales, x_scales, xs, columns, few, P)
        up = total
        if GATED:
            up = _total(
                x, w, high, marks, scales, x_scales, x_sums, xs, columns + n, few, k, padded,
                x_stride, w_stride, marks_stride, x_groups_stride, P,
            )  # fmt: skip
            up = _scaled(up, scales, x_scales, xs, columns + n, few, P)
        finish(
            total, up, bias + base, out, out_stride, rows, few, ns, n,
            P.has_bias, ACTIVATION, P.limit, P.alpha, P.interpreted,
        )  # fmt: skip
