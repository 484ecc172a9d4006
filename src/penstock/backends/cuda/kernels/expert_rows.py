"""What is done with the rows of a token's experts besides products: factors, and their sum."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.cast import cast
from penstock.backends.cuda.kernels.runtime import INTERPRETED
from penstock.backends.cuda.kernels.tiling import launch_rows


def scale_rows(x: Tensor, by: Tensor, out: Tensor, sigmoid: bool) -> None:
    """Run ``plan.ops.ScaleRows``: x ``[T, c]`` or ``[k * T, c]`` and out ``[k * T, c]``, of any
    floating types; by float32 ``[T, k]``. out may be x where both have as many rows."""
    rows, cols = out.shape
    if rows == 0:
        return
    launch_rows(
        _scale_rows,
        rows,
        cols,
        x,
        by,
        out,
        rows,
        cols,
        x.stride(0),
        by.stride(0),
        out.stride(0),
        TIMES=by.shape[1],
        X_TIMES=rows // len(x),
        SIGMOID=sigmoid,
        INTERPRETED=INTERPRETED,
    )


def combine_experts(x: Tensor, shares: Tensor | None, out: Tensor) -> None:
    """Run ``plan.ops.CombineExperts``: x ``[k * T, c]``, shares ``[T, k]`` and out ``[T, c]``, all
    float32."""
    rows, cols = out.shape
    if rows == 0:
        return
    launch_rows(
        _combine_experts,
        rows,
        cols,
        x,
        x if shares is None else shares,
        out,
        rows,
        cols,
        x.stride(0),
        0 if shares is None else shares.stride(0),
        out.stride(0),
        TIMES=len(x) // rows,
        HAS_SHARES=shares is not None,
    )


@triton.jit(do_not_specialize=["rows"])
def _scale_rows(
    x, by, out, rows, cols, x_stride, by_stride, out_stride,
    TIMES: tl.constexpr,
    X_TIMES: tl.constexpr,
    SIGMOID: tl.constexpr,
    INTERPRETED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (row < rows) & (column < cols)
    factor = tl.load(by + row // TIMES * by_stride + row % TIMES, mask=row < rows, other=0.0)
    if SIGMOID:
        factor = tl.div_rn(tl.full([ROWS, 1], 1.0, tl.float32), 1.0 + tl.exp(-factor))
    y = tl.load(x + row // X_TIMES * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    y = cast(y * factor, out.dtype.element_ty, INTERPRETED)
    tl.store(out + row * out_stride + column, y, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _combine_experts(
    x, shares, out, rows, cols, x_stride, shares_stride, out_stride,
    TIMES: tl.constexpr,
    HAS_SHARES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    there = row < rows
    inside = there & (column < cols)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for rank in tl.static_range(TIMES):
        y = tl.load(x + (row * TIMES + rank) * x_stride + column, mask=inside, other=0.0)
        if HAS_SHARES:
            y = tl.load(shares + row * shares_stride + rank, mask=there, other=0.0) * y
        total += y
    tl.store(out + row * out_stride + column, total, mask=inside)
