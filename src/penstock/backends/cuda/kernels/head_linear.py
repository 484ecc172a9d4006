"""Products of heads with matrices of their own, in the arithmetic of other products."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.finish import finish, place
from penstock.backends.cuda.kernels.linear import linear_section
from penstock.backends.cuda.kernels.runtime import INTERPRETED
from penstock.backends.cuda.kernels.tiles import Tile


def head_linear(x: Tensor, w: Tensor, out: Tensor, k: int, tile: Tile) -> None:
    """Run ``plan.ops.HeadLinear``: x ``[rows, heads * k]``, out ``[rows, heads * n]``.

    w ``[heads, n, padded]``, whose columns from k on are zeros, contiguous; a tile's depth divides
    ``padded``, and its splits are passed over.
    """
    heads, n, padded = w.shape
    rows = len(x)
    if rows == 0:
        return
    tiles = triton.cdiv(rows, tile.rows) * triton.cdiv(n, tile.cols)
    head_linear_kernel[(tiles, heads)](
        x,
        w,
        out,
        rows,
        n,
        k,
        padded,
        x.stride(0),
        out.stride(0),
        ROWS=tile.rows,
        COLS=tile.cols,
        DEPTH=tile.depth,
        STAGES=tile.stages,
        EVEN=k == padded,
        INTERPRETED=INTERPRETED,
        num_warps=tile.warps,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["rows"])
def head_linear_kernel(
    x,
    w,
    out,
    rows,
    n,
    k,
    padded,
    x_stride,
    out_stride,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    EVEN: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Compute a tile of one head's columns of ``out``. Grid: tiles of a head, heads."""
    head = tl.program_id(1)
    row_tile, col_tile = place(tl.program_id(0), tl.cdiv(rows, ROWS), tl.cdiv(n, COLS))
    ms = row_tile * ROWS + tl.arange(0, ROWS)
    ns = col_tile * COLS + tl.arange(0, COLS)
    columns = tl.minimum(ns, n - 1)  # past the end the last one is repeated, and not stored
    few = ms < rows
    sums = linear_section(
        x,
        w,
        ms.to(tl.int64) * x_stride + head * k,
        (head * n + columns).to(tl.int64) * padded,
        few,
        0,
        padded,
        k,
        ROWS,
        COLS,
        DEPTH,
        STAGES,
        EVEN,
        INTERPRETED,
    )
    finish(
        sums,
        sums,
        out,
        out + head * n,
        out_stride,
        ms,
        few,
        ns,
        n,
        HAS_BIAS=False,
        ACTIVATION="none",
        LIMIT=0.0,
        ALPHA=0.0,
        INTERPRETED=INTERPRETED,
    )
