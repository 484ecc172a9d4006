"""The kernel of every product: tiles of ``out``, splits of K, and the parts of each format."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.backends.cuda.kernels.cast import cast
from penstock.backends.cuda.kernels.finish import activate, collect, finish, is_last, park, place
from penstock.backends.cuda.kernels.grid_linear import grid_section
from penstock.backends.cuda.kernels.group_linear import group_section
from penstock.backends.cuda.kernels.linear import linear_section


@triton.jit
def _section(
    x, w, marks, scales, x_scales, x_sums, ms, columns, few, first, last, k,
    x_stride, w_stride, marks_stride, x_groups_stride,
    FORMAT: tl.constexpr, BITS: tl.constexpr, SIZE: tl.constexpr, PLANE: tl.constexpr,
    WHOLE: tl.constexpr, ZEROS: tl.constexpr, INTS: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, UNROLL: tl.constexpr,
    STAGES: tl.constexpr, EVEN: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Return a format's sums ``[COLS, ROWS]`` over columns ``first .. last`` of k."""
    x_rows = ms.to(tl.int64) * x_stride
    w_rows = columns.to(tl.int64) * w_stride
    if FORMAT == "float":
        sums = linear_section(
            x, w, x_rows, w_rows, few, first, last, k, ROWS, COLS, DEPTH, STAGES, EVEN, INTERPRETED
        )
    elif FORMAT == "grid":
        sums = grid_section(
            x, w, marks, x_rows, w_rows, columns, few, first, last, k, marks_stride,
            BITS, PLANE, INTS, ROWS, COLS, DEPTH, UNROLL, STAGES, EVEN, INTERPRETED,
        )  # fmt: skip
    else:
        tl.static_assert(FORMAT == "group")
        sums = group_section(
            x, w, scales, marks, x_scales, x_sums, x_rows, w_rows, ms, columns, few, first, last, k,
            marks_stride, x_groups_stride,
            BITS, SIZE, PLANE, WHOLE, ZEROS, INTS,
            ROWS, COLS, DEPTH, UNROLL, STAGES, EVEN, INTERPRETED,
        )  # fmt: skip
    return sums


@triton.jit
def _total(
    x, w, marks, scales, x_scales, x_sums, ms, columns, few, k, padded,
    x_stride, w_stride, marks_stride, x_groups_stride,
    FORMAT: tl.constexpr, BITS: tl.constexpr, SIZE: tl.constexpr, PLANE: tl.constexpr,
    WHOLE: tl.constexpr, ZEROS: tl.constexpr, INTS: tl.constexpr,
    SPLITS: tl.constexpr, LENGTH: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, UNROLL: tl.constexpr,
    STAGES: tl.constexpr, EVEN: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Compute all splits in one program, and add them as ``collect`` does."""
    if SPLITS == 1:
        total = _section(
            x, w, marks, scales, x_scales, x_sums, ms, columns, few, 0, padded, k,
            x_stride, w_stride, marks_stride, x_groups_stride,
            FORMAT, BITS, SIZE, PLANE, WHOLE, ZEROS, INTS,
            ROWS, COLS, DEPTH, UNROLL, STAGES, EVEN, INTERPRETED,
        )  # fmt: skip
    else:
        total = tl.zeros([COLS, ROWS], tl.float32)
        for split in range(SPLITS):
            first = split * LENGTH
            total += _section(
                x, w, marks, scales, x_scales, x_sums, ms, columns, few,
                first, tl.minimum(first + LENGTH, padded), k,
                x_stride, w_stride, marks_stride, x_groups_stride,
                FORMAT, BITS, SIZE, PLANE, WHOLE, ZEROS, INTS,
                ROWS, COLS, DEPTH, UNROLL, STAGES, EVEN, INTERPRETED,
            )  # fmt: skip
    return total


@triton.jit
def _scaled(
    total, scales, x_scales, ms, columns, few,
    FORMAT: tl.constexpr, WHOLE: tl.constexpr, INTS: tl.constexpr,
):  # fmt: skip
    """Return float32 sums, times the scales of rows that have one."""
    if FORMAT == "grid" or WHOLE:
        scale = tl.load(scales + columns)[:, None]
        if INTS:
            x_scale = tl.load(x_scales + ms, mask=few, other=0.0)
            sums = total.to(tl.float32) * (x_scale[None, :] * scale)
        else:
            sums = total * scale
    else:
        sums = total
    return sums


@triton.jit(do_not_specialize=["rows", "x_groups_stride"])
def product_kernel(
    x, w, marks, scales, x_scales, x_sums, bias, out, partials, counters,
    rows, n, k, padded, x_stride, w_stride, marks_stride, x_groups_stride, out_stride,
    FORMAT: tl.constexpr,
    BITS: tl.constexpr,
    SIZE: tl.constexpr,
    PLANE: tl.constexpr,
    WHOLE: tl.constexpr,
    ZEROS: tl.constexpr,
    INTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    SPLITS: tl.constexpr,
    LENGTH: tl.constexpr,
    PARALLEL: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    UNROLL: tl.constexpr,
    STAGES: tl.constexpr,
    EVEN: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Compute ``plan.ops.Linear``. Grid: tiles of ``out``, then splits where ``PARALLEL``.

    x ``[rows, k]``, or int8 codes with x_scales and x_sums where ``INTS``; w ``[n, padded]``
    (``[2 n, padded]`` where there is an ``ACTIVATION``), as ``packing.py`` lays it out, with what
    goes with codes in marks and scales; bias float32 ``[n]`` or ``[2 n]``. A split is ``LENGTH``
    columns of k. partials: ``[tiles, splits, gate and up, COLS, ROWS]`` of the sums' type;
    counters int32 ``[tiles]``, 0 before and after. Arguments that a format lacks are never read.
    """
    tile = tl.program_id(0)
    ms, ns = place(tile, rows, n, ROWS, COLS)
    few = ms < rows
    # Columns past the end repeat the last one: their sums are not stored.
    columns = tl.minimum(ns, n - 1)
    GATED: tl.constexpr = ACTIVATION != "none"
    if PARALLEL:
        PARTS: tl.constexpr = 2 if GATED else 1
        split = tl.program_id(1)
        first = split * LENGTH
        last = tl.minimum(first + LENGTH, padded)
        for part in tl.static_range(PARTS):
            sums = _section(
                x, w, marks, scales, x_scales, x_sums, ms, columns + part * n, few, first, last, k,
                x_stride, w_stride, marks_stride, x_groups_stride,
                FORMAT, BITS, SIZE, PLANE, WHOLE, ZEROS, INTS,
                ROWS, COLS, DEPTH, UNROLL, STAGES, EVEN, INTERPRETED,
            )  # fmt: skip
            park(partials, (tile * SPLITS + split) * PARTS + part, sums, COLS, ROWS)
        if is_last(counters, tile, SPLITS):
            slot = tile * SPLITS * PARTS
            total = collect(partials, slot, PARTS, SPLITS, COLS, ROWS)
            total = _scaled(total, scales, x_scales, ms, columns, few, FORMAT, WHOLE, INTS)
            up = total
            if GATED:
                up = collect(partials, slot + 1, PARTS, SPLITS, COLS, ROWS)
                up = _scaled(up, scales, x_scales, ms, columns + n, few, FORMAT, WHOLE, INTS)
            finish(
                total, up, bias, out, out_stride, ms, ns, rows, n,
                HAS_BIAS, ACTIVATION, INTERPRETED,
            )  # fmt: skip
    else:
        total = _total(
            x, w, marks, scales, x_scales, x_sums, ms, columns, few, k, padded,
            x_stride, w_stride, marks_stride, x_groups_stride,
            FORMAT, BITS, SIZE, PLANE, WHOLE, ZEROS, INTS, SPLITS, LENGTH,
            ROWS, COLS, DEPTH, UNROLL, STAGES, EVEN, INTERPRETED,
        )  # fmt: skip
        total = _scaled(total, scales, x_scales, ms, columns, few, FORMAT, WHOLE, INTS)
        up = total
        if GATED:
            up = _total(
                x, w, marks, scales, x_scales, x_sums, ms, columns + n, few, k, padded,
                x_stride, w_stride, marks_stride, x_groups_stride,
                FORMAT, BITS, SIZE, PLANE, WHOLE, ZEROS, INTS, SPLITS, LENGTH,
                ROWS, COLS, DEPTH, UNROLL, STAGES, EVEN, INTERPRETED,
            )  # fmt: skip
            up = _scaled(up, scales, x_scales, ms, columns + n, few, FORMAT, WHOLE, INTS)
        finish(total, up, bias, out, out_stride, ms, ns, rows, n, HAS_BIAS, ACTIVATION, INTERPRETED)


@triton.jit
def epilogue_kernel(
    sums,
    bias,
    out,
    n,
    sums_stride,
    out_stride,
    HAS_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    INTERPRETED: tl.constexpr,
    COLS: tl.constexpr,
):
    """Add bias, gate and round sums float32 ``[rows, n]`` (``[rows, 2 n]`` where gated).

    Grid: rows, blocks of ``COLS`` columns.
    """
    row = tl.program_id(0).to(tl.int64)
    ns = tl.program_id(1) * COLS + tl.arange(0, COLS)
    inside = ns < n
    y = tl.load(sums + row * sums_stride + ns, mask=inside, other=0.0)
    if HAS_BIAS:
        y += tl.load(bias + ns, mask=inside, other=0.0)
    if ACTIVATION != "none":
        up = tl.load(sums + row * sums_stride + n + ns, mask=inside, other=0.0)
        if HAS_BIAS:
            up += tl.load(bias + n + ns, mask=inside, other=0.0)
        y = activate(y, ACTIVATION) * up
    tl.store(out + row * out_stride + ns, cast(y, out.dtype.element_ty, INTERPRETED), mask=inside)
