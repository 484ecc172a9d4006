"""Low-rank additions by the adapter of each row: ``plan.ops.AdapterDown`` and ``AdapterUp``.

Rows of one adapter are tiles of a list (``adapter_rows.py``), which the host writes for each step:
the list is data, and how many tiles there are at most depends on the number of rows alone, as CUDA
graphs need it. A program finds in its tile which slot its rows have, and ends at once where the
tile is empty, or where the slot has nothing in its columns: a smaller rank reads fewer weights.

A row's bits do not depend on its neighbours. Sums ascend in k, split at places that k and the op
alone choose, by products whose left operand is the weights (``finish.py``), and splits are added in
their order from 0. Steps of few rows give each split a program of its own, since a matrix of so few
columns makes too few programs otherwise; the second kernel then adds the splits, which larger steps
add in the first. The scale is multiplied into the whole sum, in the second kernel.

What lies between is float32, so the second product takes float32 operands, in three products of
TF32 each (``operands.multiply``).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.linear import linear_section
from penstock.backends.cuda.kernels.operands import multiply
from penstock.backends.cuda.kernels.runtime import INTERPRETED
from penstock.backends.cuda.kernels.tiles import splits_of

FIELDS: Final = 3
"""Integers of a tile of rows: slot, place of its first row in the list, number of rows."""

MOST_SPLIT: Final = 256
"""Rows up to which splits have programs of their own; from there on rows make enough programs."""

_UNIT: Final = 128
"""Columns of k are padded to a multiple of this, which the depth of all tiles divides."""
_UP_COLS: Final = 64
"""Columns of out that a program of the second product has."""
_STAGES: Final = 4


def tile_height(rows: int) -> int:
    """Return the rows of a tile in a step with so many: sequences that decode have few each."""
    return 16 if rows <= MOST_SPLIT else 64


class DownSlots(NamedTuple):
    """What the slots have for one ``AdapterDown``."""

    weights: Tensor
    """``[slots, parts, rank, padded]``: of each part as many rows as its adapter's rank, the rest
    undefined; columns from k on are zeros."""
    ranks: Tensor
    """int32 ``[slots, parts]``; 0: nothing."""
    scales: Tensor
    """float32 ``[slots, parts]``."""
    k: int

    @property
    def splits(self) -> tuple[int, int]:
        """Number of splits of k, and the columns of one."""
        _, parts, rank, padded = self.weights.shape
        return splits_of(parts * rank, padded)


class UpSlots(NamedTuple):
    """What the slots have for one ``AdapterUp``."""

    weights: Tensor
    """``[slots, n of all parts, room]``, columns from an adapter's rank on are zeros."""
    columns: Tensor
    """int32 ``[tiles, 3]`` of out's columns: the part, the first column, and that behind the part's
    last."""
    at: int
    """The first part's number among those of the ``AdapterDown``."""


class Tiles(NamedTuple):
    """The rows of a step that have adapters, on the device."""

    tiles: Tensor
    """int32 ``[tiles, FIELDS]``."""
    order: Tensor
    """int32: row numbers, those of one slot behind another's."""


def padded_columns(k: int) -> int:
    """Return the columns of a row of ``DownSlots.weights``."""
    return -(-k // _UNIT) * _UNIT


def down_cols(rank: int) -> int:
    """Return the rows of a part's weights that a program of the first product has."""
    return next((cols for cols in (16, 32) if rank <= cols), 64)


def up_depth(rank: int) -> int:
    """Return how many numbers between the products are multiplied at a time."""
    return min(down_cols(rank), 32)


def up_room(rank: int) -> int:
    """Return the columns of a row of ``UpSlots.weights``."""
    return -(-rank // up_depth(rank)) * up_depth(rank)


def up_columns(widths: list[int]) -> list[tuple[int, int, int]]:
    """Return ``UpSlots.columns`` of parts that have so many columns each."""
    tiles, first = [], 0
    for part, n in enumerate(widths):
        tiles += [(part, at, first + n) for at in range(first, first + n, _UP_COLS)]
        first += n
    return tiles


def adapter_down(x: Tensor, slots: DownSlots, rows: Tiles, sums: Tensor) -> None:
    """Run ``plan.ops.AdapterDown`` for the rows that have an adapter, but for the scale.

    x ``[rows, k]``, float32 or 16 bits; sums float32 ``[splits, rows, parts * rank]``, of one split
    or of all ``slots.splits``. Of other rows, and behind an adapter's rank, nothing is written.
    """
    if len(rows.tiles) == 0:
        return
    _, parts, rank, padded = slots.weights.shape
    splits, length = slots.splits
    cols = down_cols(rank)
    height = tile_height(sums.shape[1])
    wide = x.element_size() == 4 or slots.weights.element_size() == 4
    depth = (128 if height == 16 else 64) // (2 if wide else 1)
    adapter_down_kernel[(len(rows.tiles), parts * -(-rank // cols), len(sums))](
        x,
        slots.weights,
        rows.tiles,
        rows.order,
        slots.ranks,
        sums,
        slots.k,
        padded,
        x.stride(0),
        sums.stride(0),
        sums.stride(1),
        PARTS=parts,
        RANK=rank,
        ROWS=height,
        COLS=cols,
        DEPTH=depth,
        STAGES=_STAGES,
        SPLITS=splits,
        LENGTH=length,
        PARALLEL=len(sums) > 1,
        EVEN=slots.k == padded,
        INTERPRETED=INTERPRETED,
        num_warps=4,
        enable_fp_fusion=False,
    )


def adapter_up(sums: Tensor, down: DownSlots, up: UpSlots, rows: Tiles, out: Tensor) -> None:
    """Run ``plan.ops.AdapterUp`` for the rows that have an adapter: out float32 ``[rows, n]``, sums
    as :func:`adapter_down` makes them."""
    if len(rows.tiles) == 0:
        return
    _, parts, rank, _ = down.weights.shape
    _, n, room = up.weights.shape
    adapter_up_kernel[(len(rows.tiles), len(up.columns))](
        sums,
        up.weights,
        rows.tiles,
        rows.order,
        down.ranks,
        down.scales,
        up.columns,
        out,
        n,
        sums.stride(0),
        sums.stride(1),
        out.stride(0),
        AT=up.at,
        PARTS=parts,
        RANK=rank,
        ROOM=room,
        SPLITS=len(sums),
        ROWS=tile_height(len(out)),
        COLS=_UP_COLS,
        DEPTH=up_depth(rank),
        INTERPRETED=INTERPRETED,
        num_warps=4,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["split_stride", "row_stride"])
def adapter_down_kernel(
    x, w, tiles, order, ranks, sums, k, padded, x_stride, split_stride, row_stride,
    PARTS: tl.constexpr,
    RANK: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    SPLITS: tl.constexpr,
    LENGTH: tl.constexpr,
    PARALLEL: tl.constexpr,
    EVEN: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Compute some columns of what lies between. Grid: tiles of rows; columns of each part; splits,
    or 1 where one program adds all of them."""
    tile = tiles + 3 * tl.program_id(0)
    count = tl.load(tile + 2)
    if count == 0:
        return
    slot = tl.load(tile)
    PER_PART: tl.constexpr = (RANK + COLS - 1) // COLS
    part = tl.program_id(1) // PER_PART
    first = tl.program_id(1) % PER_PART * COLS
    own = tl.load(ranks + slot * PARTS + part)
    if first >= own:
        return
    within = tl.arange(0, ROWS)
    few = within < count
    rows = tl.load(order + tl.load(tile + 1) + within, mask=few, other=0).to(tl.int64)
    js = first + tl.arange(0, COLS)
    columns = tl.minimum(js, own - 1)  # past the end the last one is repeated, and not stored
    w_rows = ((slot * PARTS + part) * RANK + columns).to(tl.int64) * padded
    x_rows = rows * x_stride
    split = tl.program_id(2)
    if PARALLEL:
        start = split * LENGTH
        total = linear_section(
            x, w, x_rows, w_rows, few, start, tl.minimum(start + LENGTH, padded), k,
            ROWS, COLS, DEPTH, STAGES, EVEN, INTERPRETED,
        )  # fmt: skip
    else:
        total = tl.zeros([COLS, ROWS], tl.float32)
        for each in range(SPLITS):
            start = each * LENGTH
            total += linear_section(
                x, w, x_rows, w_rows, few, start, tl.minimum(start + LENGTH, padded), k,
                ROWS, COLS, DEPTH, STAGES, EVEN, INTERPRETED,
            )  # fmt: skip
    at = sums + split.to(tl.int64) * split_stride + rows[None, :] * row_stride
    at += part * RANK + js[:, None]
    tl.store(at, total, mask=(js < own)[:, None] & few[None, :])


@triton.jit(do_not_specialize=["split_stride", "row_stride"])
def adapter_up_kernel(
    sums, w, tiles, order, ranks, scales, columns, out, n, split_stride, row_stride, out_stride,
    AT: tl.constexpr,
    PARTS: tl.constexpr,
    RANK: tl.constexpr,
    ROOM: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    INTERPRETED: tl.constexpr,
):  # fmt: skip
    """Add to some columns of out. Grid: tiles of rows, tiles of columns."""
    tile = tiles + 3 * tl.program_id(0)
    count = tl.load(tile + 2)
    if count == 0:
        return
    slot = tl.load(tile)
    place = columns + 3 * tl.program_id(1)
    part = AT + tl.load(place)
    own = tl.load(ranks + slot * PARTS + part)
    if own == 0:
        return
    scale = tl.load(scales + slot * PARTS + part)
    within = tl.arange(0, ROWS)
    few = within < count
    rows = tl.load(order + tl.load(tile + 1) + within, mask=few, other=0).to(tl.int64)
    end = tl.load(place + 2)
    ns = tl.load(place + 1) + tl.arange(0, COLS)
    w_rows = (slot * n + tl.minimum(ns, end - 1)).to(tl.int64) * ROOM
    low = sums + (rows * row_stride)[:, None] + part * RANK
    total = tl.zeros([COLS, ROWS], tl.float32)
    for first in range(0, own, DEPTH):
        js = first + tl.arange(0, DEPTH)
        there = few[:, None] & (js < own)[None, :]
        b = tl.zeros([ROWS, DEPTH], tl.float32)
        for split in range(SPLITS):
            at = low + split * split_stride.to(tl.int64)
            b += tl.load(at + js[None, :], mask=there, other=0.0)
        a = tl.load(w + w_rows[:, None] + js[None, :]).to(tl.float32)
        total = multiply(a, b * scale, total, INTERPRETED)
    at = out + rows[None, :] * out_stride + ns[:, None]
    inside = (ns < end)[:, None] & few[None, :]
    tl.store(at, tl.load(at, mask=inside, other=0.0) + total, mask=inside)
