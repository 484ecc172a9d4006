"""Rows that a learned row of their token's position is added to, or that its factor multiplies."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.cast import cast
from penstock.backends.cuda.kernels.runtime import INTERPRETED
from penstock.backends.cuda.kernels.tiling import launch_rows


def add_positions(x: Tensor, positions: Tensor, table: Tensor, offset: int, out: Tensor) -> None:
    """Run ``plan.ops.AddPositions``: x and out float32 ``[T, c]``, positions int32 ``[T]``, table
    float32 ``[rows, c]``; out may be x."""
    _launch(x, positions, table, out, offset, 1, factors=False)


def scale_by_position(
    x: Tensor, positions: Tensor, factors: Tensor, offset: int, period: int, out: Tensor
) -> None:
    """Run ``plan.ops.ScaleByPosition``: x float32 ``[T, c]``, positions int32 ``[T]``, factors
    float32, one for each ``(position + offset) // period``; out may be x."""
    _launch(x, positions, factors, out, offset, period, factors=True)


def _launch(
    x: Tensor,
    positions: Tensor,
    table: Tensor,
    out: Tensor,
    offset: int,
    period: int,
    factors: bool,
) -> None:
    rows, cols = out.shape
    launch_rows(
        _by_position,
        rows,
        cols,
        x,
        positions,
        table,
        out,
        rows,
        cols,
        x.stride(0),
        out.stride(0),
        OFFSET=offset,
        PERIOD=period,
        FACTORS=factors,
        INTERPRETED=INTERPRETED,
    )


@triton.jit(do_not_specialize=["rows"])
def _by_position(
    x,
    positions,
    table,
    out,
    rows,
    cols,
    x_stride,
    out_stride,
    OFFSET: tl.constexpr,
    PERIOD: tl.constexpr,
    FACTORS: tl.constexpr,
    INTERPRETED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Multiply x by its position's factor where FACTORS, else add its position's row of table."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = (row < rows)[:, None] & (column < cols)
    y = tl.load(x + row[:, None] * x_stride + column, mask=inside, other=0.0)
    position = tl.load(positions + row, mask=row < rows, other=0)
    place = ((position + OFFSET) // PERIOD).to(tl.int64)
    if FACTORS:
        y = y * tl.load(table + place, mask=row < rows, other=0.0)[:, None]
    else:
        y = y + tl.load(table + place[:, None] * cols + column, mask=inside, other=0.0)
    y = cast(y, out.dtype.element_ty, INTERPRETED)
    tl.store(out + row[:, None] * out_stride + column, y, mask=inside)
