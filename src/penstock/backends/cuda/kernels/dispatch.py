"""The rows of a step sorted by expert, and the tiles in which products take them."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.backends.cuda.kernels.tiles import most_tiles

_BLOCK = 512


def dispatch(
    ids: Tensor,
    slots: Tensor | None,
    experts: int,
    heights: tuple[int, ...],
    order: Tensor,
    tiles: Tensor,
) -> None:
    """Sort the ``k * T`` rows of ids int32 ``[T, k]`` by expert, and list the tiles they make.

    ``order`` int32 ``[k * T]`` receives the numbers of the rows, those of expert 0 first, of each
    expert in ascending order; ``tiles[i]`` int32 ``[most_tiles, 4]`` for each i of the one or two
    ``heights`` its expert, where in ``order`` its rows begin, how many there are, and anything.
    What is left of it behind the last tile has no rows. Tokens whose slot ``[T]`` is negative are
    left out: they are padding.
    """
    tokens, times = ids.shape
    rows = tokens * times
    last = heights[-1]
    _dispatch[(experts + 1,)](
        ids,
        ids if slots is None else slots,
        order,
        tiles,
        rows,
        ids.stride(0),
        tiles.stride(0),
        len(heights),
        heights[0],
        last,
        most_tiles(rows, experts, heights[0]),
        most_tiles(rows, experts, last),
        TIMES=times,
        EXPERTS=experts,
        HAS_SLOTS=slots is not None,
        BINS=max(64, triton.next_power_of_2(experts + 1)),
        BLOCK=_BLOCK,
        num_warps=4,
    )


@triton.jit
def _experts(
    ids, slots, at, rows, stride,
    TIMES: tl.constexpr, EXPERTS: tl.constexpr, HAS_SLOTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the experts of rows ``at .. at + BLOCK``, ``EXPERTS`` for those that have none."""
    row = at + tl.arange(0, BLOCK)
    there = row < rows
    token = row // TIMES
    expert = tl.load(ids + token.to(tl.int64) * stride + row % TIMES, mask=there, other=EXPERTS)
    if HAS_SLOTS:
        slot = tl.load(slots + token, mask=there, other=-1)
        expert = tl.where(slot < 0, EXPERTS, expert)
    return expert


@triton.jit(
    do_not_specialize=[
        "rows", "lists", "first_height", "second_height", "first_most", "second_most",
    ]
)  # fmt: skip
def _dispatch(
    ids, slots, order, tiles, rows, stride, list_stride, lists,
    first_height, second_height, first_most, second_most,
    TIMES: tl.constexpr,
    EXPERTS: tl.constexpr,
    HAS_SLOTS: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Each program places the rows and tiles of one expert, the last one tiles without rows.

    All of them count all rows, so that none waits for another: a pass over 16K of them takes some
    microseconds.
    """
    mine = tl.program_id(0)
    bins = tl.arange(0, BINS)
    counts = tl.zeros([BINS], tl.int32)
    for at in range(0, rows, BLOCK):
        some = _experts(ids, slots, at, rows, stride, TIMES, EXPERTS, HAS_SLOTS, BLOCK)
        counts += tl.histogram(some, BINS)
    counts = tl.where(bins < EXPERTS, counts, 0)
    start = tl.sum(tl.where(bins < mine, counts, 0), axis=0)
    count = tl.sum(tl.where(bins == mine, counts, 0), axis=0)
    within = tl.arange(0, BLOCK)
    for index in range(lists):
        height = tl.where(index == 0, first_height, second_height)
        most = tl.where(index == 0, first_most, second_most)
        each = (counts + height - 1) // height
        first = tl.sum(tl.where(bins < mine, each, 0), axis=0)
        number = tl.where(mine == EXPERTS, most - first, (count + height - 1) // height)
        for at in range(0, number, BLOCK):
            tile = at + within
            to = tiles + index * list_stride + (first + tile) * 4
            there = tile < number
            tl.store(to, tl.zeros([BLOCK], tl.int32) + mine, mask=there)
            tl.store(to + 1, start + tile * height, mask=there)
            left = tl.maximum(count - tile * height, 0)
            tl.store(to + 2, tl.minimum(left, height), mask=there)
    if count > 0:
        done = start
        for at in range(0, rows, BLOCK):
            some = _experts(ids, slots, at, rows, stride, TIMES, EXPERTS, HAS_SLOTS, BLOCK)
            hit = (some == mine).to(tl.int32)
            place = done + tl.cumsum(hit, axis=0) - hit
            tl.store(order + place, at + within, mask=hit > 0)
            done += tl.sum(hit, axis=0)
