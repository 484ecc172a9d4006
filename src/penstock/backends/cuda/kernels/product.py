"""The kernel of plain products: tiles of ``out``, and splits of K."""

from __future__ import annotations

import triton
import triton.language as tl

from penstock.backends.cuda.kernels.cast import cast
from penstock.backends.cuda.kernels.finish import gated, place
from penstock.backends.cuda.kernels.product_tile import product_tile


@triton.jit(do_not_specialize=["rows", "x_groups_stride"])
def product_kernel(
    x, w, high, marks, scales, x_scales, x_sums, bias, out, partials, counters,
    rows, n, k, padded, x_stride, w_stride, marks_stride, x_groups_stride, out_stride,
    P: tl.constexpr,
):  # fmt: skip
    """Compute ``plan.ops.Linear``. Grid: tiles of ``out``, then splits where ``P.parallel``.

    x ``[rows, k]``, or int8 codes with x_scales and x_sums where ``P.ints``; w ``[n, padded]``
    (``[2 n, padded]`` where there is an ``P.activation``), as ``packing.py`` lays it out, with what
    goes with codes in marks and scales; bias float32 ``[n]`` or ``[2 n]``. A split is ``P.length``
    columns of k. partials: ``[tiles, splits, gate and up, COLS, ROWS]`` of the sums' type;
    counters int32 ``[tiles]``, 0 before and after. LIMIT and ALPHA are those of a "clamped"
    activation. Arguments that a format lacks are never read.
    """
    tile = tl.program_id(0)
    row_tile, col_tile = place(tile, tl.cdiv(rows, P.rows), tl.cdiv(n, P.cols))
    ms = row_tile * P.rows + tl.arange(0, P.rows)
    ns = col_tile * P.cols + tl.arange(0, P.cols)
    product_tile(
        x, w, high, marks, scales, x_scales, x_sums, bias, out, partials, counters,
        tile, tl.program_id(1), ms, ms, ms < rows, ns, 0, n, k, padded,
        x_stride, w_stride, marks_stride, x_groups_stride, out_stride, P,
    )  # fmt: skip


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
    LIMIT: tl.constexpr,
    ALPHA: tl.constexpr,
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
        y = gated(y, up, ACTIVATION, LIMIT, ALPHA)
    tl.store(out + row * out_stride + ns, cast(y, out.dtype.element_ty, INTERPRETED), mask=inside)
