"""Products of experts: tiles of the rows that each expert has, by the code of plain products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.capability import Capability
from penstock.backends.cuda.kernels.finish import place
from penstock.backends.cuda.kernels.launch import (
    Extent,
    Parts,
    constants,
    round_rows,
    rounded_parts,
)
from penstock.backends.cuda.kernels.product_tile import product_tile
from penstock.backends.cuda.kernels.tiles import Tile, choose, most_tiles, row_step, row_steps
from penstock.backends.cuda.kernels.weights import Weights
from penstock.backends.cuda.workspace import Workspace, carved_bytes
from penstock.models.spec import Gating


class ExpertExtent(Extent, Protocol):
    """The part of ``expert_matrix.ExpertShape`` that launches need. ``max_rows`` counts tokens."""

    @property
    def experts(self) -> int: ...
    @property
    def times(self) -> int: ...
    @property
    def x_times(self) -> int: ...


@dataclass(frozen=True)
class RowsByExpert:
    """The rows of a step by expert, as :func:`~penstock.backends.cuda.kernels.dispatch.dispatch`
    has them on the device."""

    ids: Tensor
    """int32 ``[T, k]``."""
    order: Tensor
    tiles: Tensor
    """Those of the product's height."""

    @property
    def is_direct(self) -> bool:
        """Whether there is one token alone: each of its experts has one row, and nothing is
        sorted."""
        return len(self.ids) == 1


def tile_of(
    weights: Weights, shape: ExpertExtent, x_dtype: torch.dtype, tokens: int, at: Capability
) -> Tile:
    """Return the tile in which :func:`expert_product` computes the rows of ``tokens`` tokens."""
    kind = weights.kind(x_dtype, shape.gated)
    return choose(
        kind, tokens, shape.n, weights.padded, at, shape.experts, shape.times, shape.whole_n
    )


def scratch(weights: Weights, shape: ExpertExtent, x_dtype: torch.dtype, at: Capability) -> int:
    """Return the most bytes of the workspace that :func:`expert_product` carves."""
    most = 0
    for tokens in row_steps(shape.max_rows):
        tile = tile_of(weights, shape, x_dtype, tokens, at)
        most = max(most, carved_bytes(*_parts(weights, tile, tokens, shape, x_dtype)))
    return most


def _parts(
    weights: Weights, tile: Tile, tokens: int, shape: ExpertExtent, x_dtype: torch.dtype
) -> Parts:
    parts = rounded_parts(weights, tokens * shape.times // shape.x_times)
    if tile.parallel:
        # As many at all numbers of tokens that have this tile.
        row_tiles = most_tiles(row_step(tokens) * shape.times, shape.experts, tile.rows)
        tiles = row_tiles * -(-shape.n // tile.cols) * tile.splits * (2 if shape.gated else 1)
        exact = weights.kind(x_dtype, shape.gated).exact
        parts += [((tiles, tile.cols, tile.rows), torch.int32 if exact else torch.float32)]
    return parts


def expert_product(
    weights: Weights,
    shape: ExpertExtent,
    tile: Tile,
    x: Tensor,
    by_expert: RowsByExpert,
    out: Tensor,
    bias: Tensor | None,
    gated: Gating | None,
    workspace: Workspace,
) -> None:
    """Run ``plan.ops.ExpertLinear`` by ``expert_kernel`` in the tile that :func:`tile_of` has for
    these tokens; ``ExpertMatrix.product`` has the shapes."""
    tokens, rows = len(by_expert.ids), len(out)
    if rows == 0:
        return
    carved = workspace.carve(*_parts(weights, tile, tokens, shape, x.dtype))
    k, x_scales, x_sums = shape.k, x, x
    if weights.integers:
        codes, x_scales, x_sums = round_rows(weights, x, carved)
        x, k = codes, weights.padded
    row_tiles = most_tiles(rows, shape.experts, tile.rows)
    direct = by_expert.is_direct
    tiles = row_tiles * -(-shape.n // tile.cols)
    expert_kernel[(tiles, tile.splits if tile.parallel else 1)](
        x,
        weights.w,
        weights.w if weights.high is None else weights.high,
        weights.w if weights.marks is None else weights.marks,
        weights.w if weights.scales is None else weights.scales,
        x_scales,
        x_sums,
        out if bias is None else bias,
        out,
        carved[-1] if tile.parallel else out,
        workspace.counters,
        by_expert.ids if direct else by_expert.order,
        by_expert.ids if direct else by_expert.tiles,
        row_tiles,
        shape.n,
        k,
        weights.padded,
        x.stride(0),
        weights.w.stride(0),
        len(weights.w),
        len(x),
        out.stride(0),
        TIMES=shape.x_times,
        DIRECT=direct,
        P=constants(weights, tile, k == weights.padded, bias is not None, gated),
        num_warps=tile.warps,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["row_tiles", "x_groups_stride"])
def expert_kernel(
    x, w, high, marks, scales, x_scales, x_sums, bias, out, partials, counters,
    order, tiles, row_tiles, n, k, padded,
    x_stride, w_stride, marks_stride, x_groups_stride, out_stride,
    TIMES: tl.constexpr,
    DIRECT: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Compute ``plan.ops.ExpertLinear``. Grid: tiles of ``out``, then splits where ``P.parallel``.

    order and tiles are those of ``dispatch_kernel``, of which there are ``row_tiles``; a tile
    without rows is left. ``DIRECT``: each row has a tile to itself, and tiles ``[row_tiles]`` has
    its expert. Row r of out is made of x's row ``r // TIMES``. w and what goes with its rows have
    one expert's behind the other's; otherwise arguments are those of ``product_kernel``.
    """
    GATED: tl.constexpr = P.activation != "none"
    tile = tl.program_id(0)
    row_tile, col_tile = place(tile, row_tiles, tl.cdiv(n, P.cols))
    within = tl.arange(0, P.rows)
    if DIRECT:
        expert = tl.load(tiles + row_tile)
        few = within < 1
        rows = row_tile + within
    else:
        count = tl.load(tiles + 4 * row_tile + 2)
        if count == 0:
            return
        expert = tl.load(tiles + 4 * row_tile)
        few = within < count
        rows = tl.load(order + tl.load(tiles + 4 * row_tile + 1) + within, mask=few, other=0)
    product_tile(
        x, w, high, marks, scales, x_scales, x_sums, bias, out, partials, counters,
        tile, tl.program_id(1), rows // TIMES, rows, few, col_tile * P.cols + tl.arange(0, P.cols),
        expert * (2 * n if GATED else n), n, k, padded,
        x_stride, w_stride, marks_stride, x_groups_stride, out_stride, P,
    )  # fmt: skip
