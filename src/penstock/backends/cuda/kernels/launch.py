"""Launches of products: the tile, the scratch memory, the activations' rounding, the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import triton
from torch import Tensor

from penstock.backends.cuda.capability import Capability
from penstock.backends.cuda.kernels.product import epilogue_kernel, product_kernel
from penstock.backends.cuda.kernels.product_constants import ProductConstants
from penstock.backends.cuda.kernels.round_rows import (
    round_groups_kernel,
    round_rows_kernel,
    transform_rows_kernel,
)
from penstock.backends.cuda.kernels.runtime import INTERPRETED
from penstock.backends.cuda.kernels.tiles import Kind, Tile, choose
from penstock.backends.cuda.kernels.weights import Weights
from penstock.backends.cuda.workspace import Workspace, carved_bytes
from penstock.models.spec import ClampedSwiglu, Gating
from penstock.quant.hadamard import block_of

_ROUNDED_AT_ONCE = 4096
"""Elements of a row in registers: 16 a thread at 8 warps."""

_FINISHED_AT_ONCE = 1024
"""Columns of sums that a program finishes."""


class Extent(Protocol):
    """The part of ``matrix.Shape`` that launches need."""

    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def max_rows(self) -> int: ...
    @property
    def gated(self) -> bool: ...
    @property
    def whole_n(self) -> int: ...


Parts = list[tuple[tuple[int, ...], torch.dtype]]


def tile_of(
    weights: Weights, shape: Extent, x_dtype: torch.dtype, rows: int, at: Capability
) -> Tile:
    """Return the tile in which :func:`product` computes ``rows`` rows."""
    kind = weights.kind(x_dtype, shape.gated)
    return choose(kind, rows, shape.n, weights.padded, at, whole_n=shape.whole_n)


def scratch(weights: Weights, shape: Extent, x_dtype: torch.dtype, at: Capability) -> int:
    """Return the most bytes of the workspace that :func:`product` carves."""
    kind = weights.kind(x_dtype, shape.gated)
    most = 0
    for rows in _busiest(shape.max_rows):
        tile = tile_of(weights, shape, x_dtype, rows, at)
        most = max(most, carved_bytes(*_parts(weights, kind, tile, rows, shape)))
    return most


def _busiest(max_rows: int) -> list[int]:
    """Return numbers of rows, one of which needs the most scratch of all: ends of tiles."""
    return [*range(16, min(max_rows, 1024), 16), *range(1024, max_rows, 128), max_rows]


def rounded_parts(weights: Weights, rows: int) -> Parts:
    """Return what :func:`round_rows` writes, with a step's ``rows`` rows of x."""
    if not weights.integers:
        return []
    groups = weights.x_groups
    parts: Parts = [
        ((rows, weights.padded), torch.int8),
        ((groups, rows), torch.float32),
        ((groups, rows), torch.int32),
    ]
    if weights.format == "grid":
        parts.append(((rows, weights.padded), torch.float32))  # the rows' transform
    return parts


def _parts(weights: Weights, kind: Kind, tile: Tile, rows: int, shape: Extent) -> Parts:
    parts = rounded_parts(weights, rows)
    if tile.parallel:
        tiles = _tiles(tile, rows, shape.n) * tile.splits * (2 if shape.gated else 1)
        dtype = torch.int32 if kind.exact else torch.float32
        parts += [((tiles, tile.cols, tile.rows), dtype)]
    return parts


def _tiles(tile: Tile, rows: int, n: int) -> int:
    return -(-rows // tile.rows) * -(-n // tile.cols)


def product(
    weights: Weights,
    shape: Extent,
    x: Tensor,
    out: Tensor,
    bias: Tensor | None,
    gated: Gating | None,
    workspace: Workspace,
    taken: int = 0,
) -> None:
    """Run ``plan.ops.Linear`` by ``product_kernel``; ``matrix.Matrix.product`` has the shapes.

    ``taken``: the bytes of the workspace that are in use already, from its first on.
    """
    rows = len(x)
    if rows == 0:
        return
    kind = weights.kind(x.dtype, shape.gated)
    tile = tile_of(weights, shape, x.dtype, rows, workspace.capability)
    carved = workspace.carve(*_parts(weights, kind, tile, rows, shape), taken=taken)
    k, x_scales, x_sums = shape.k, x, x
    if weights.integers:
        codes, x_scales, x_sums = round_rows(weights, x, carved)
        x, k = codes, weights.padded
    partials = carved[-1] if tile.parallel else out
    marks = weights.w if weights.marks is None else weights.marks
    product_kernel[(_tiles(tile, rows, shape.n), tile.splits if tile.parallel else 1)](
        x,
        weights.w,
        weights.w if weights.high is None else weights.high,
        marks,
        weights.w if weights.scales is None else weights.scales,
        x_scales,
        x_sums,
        out if bias is None else bias,
        out,
        partials,
        workspace.counters,
        rows,
        shape.n,
        k,
        weights.padded,
        x.stride(0),
        weights.w.stride(0),
        len(weights.w),
        rows,
        out.stride(0),
        P=constants(weights, tile, k == weights.padded, bias is not None, gated),
        num_warps=tile.warps,
        # Sums of scaled groups, and biases, are added as the reference adds them.
        enable_fp_fusion=False,
    )


def constants(
    weights: Weights, tile: Tile, even: bool, has_bias: bool, gated: Gating | None
) -> ProductConstants:
    """Return the constants of ``product_kernel``; ``even``: rows of x need no padding."""
    return ProductConstants(
        format=weights.format,
        bits=weights.bits if weights.layout is None else weights.layout.low,
        size=weights.size,
        plane=weights.plane,
        layout=weights.layout,
        whole=weights.whole,
        zeros=weights.format == "group" and weights.marks is not None,
        ints=weights.integers,
        has_bias=has_bias,
        activation="clamped" if isinstance(gated, ClampedSwiglu) else gated or "none",
        limit=gated.limit if isinstance(gated, ClampedSwiglu) else 0.0,
        alpha=gated.alpha if isinstance(gated, ClampedSwiglu) else 0.0,
        splits=tile.splits,
        length=tile.length,
        parallel=tile.parallel,
        rows=tile.rows,
        cols=tile.cols,
        depth=tile.depth,
        unroll=tile.unroll,
        stages=tile.stages,
        even=even,
        interpreted=INTERPRETED,
    )


def finish_sums(sums: Tensor, bias: Tensor | None, gated: Gating | None, out: Tensor) -> None:
    """Add bias float32 ``[weight_rows]``, gate, and round sums float32 ``[rows, weight_rows]`` to
    out ``[rows, n]``; elements of a row adjacent."""
    rows, n = out.shape
    epilogue_kernel[(rows, triton.cdiv(n, _FINISHED_AT_ONCE))](
        sums,
        out if bias is None else bias,
        out,
        n,
        sums.stride(0),
        out.stride(0),
        HAS_BIAS=bias is not None,
        **gating(gated),
        INTERPRETED=INTERPRETED,
        COLS=_FINISHED_AT_ONCE,
        num_warps=4,
        enable_fp_fusion=False,
    )


def gating(kind: Gating | None) -> dict[str, str | float]:
    """Return the constants that say what becomes of a gate and an up, if there are any."""
    if isinstance(kind, ClampedSwiglu):
        return {"ACTIVATION": "clamped", "LIMIT": kind.limit, "ALPHA": kind.alpha}
    return {"ACTIVATION": kind or "none", "LIMIT": 0.0, "ALPHA": 0.0}


def round_rows(
    weights: Weights, x: Tensor, carved: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Round x ``[rows, k]``, on the grid its transform, in the ``carved`` :func:`rounded_parts`.

    Returns codes ``[rows, padded]``, scales and sums ``[x_groups, rows]``.
    """
    rows, k = x.shape
    codes, scales, sums = carved[:3]
    if weights.format == "grid":
        transformed, block = carved[3], block_of(k)
        transform_rows_kernel[(rows, k // block)](
            x,
            transformed,
            x.stride(0),
            transformed.stride(0),
            BLOCK=block,
            STAGES=block.bit_length() - 1,
            num_warps=1,
            # A sign's product is rounded before sums are, as everywhere.
            enable_fp_fusion=False,
        )
        x = transformed
    need_sums = weights.format == "group" and weights.marks is not None
    if weights.x_groups == 1:
        block = min(_ROUNDED_AT_ONCE, triton.next_power_of_2(weights.padded))
        round_rows_kernel[(rows,)](
            x,
            codes,
            scales,
            sums,
            k,
            weights.padded,
            x.stride(0),
            codes.stride(0),
            BY_QUOTIENT=weights.format == "group",
            SUMS=need_sums,
            BLOCK=block,
            num_warps=max(1, block // 512),
            enable_fp_fusion=False,
        )
        return codes, scales, sums
    groups = max(1, min(_ROUNDED_AT_ONCE // 2, triton.next_power_of_2(k)) // weights.size)
    round_groups_kernel[(rows, -(-weights.x_groups // groups))](
        x,
        codes,
        scales,
        sums,
        k,
        weights.padded,
        x.stride(0),
        codes.stride(0),
        rows,
        SUMS=need_sums,
        SIZE=weights.size,
        GROUPS=groups,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return codes, scales, sums
