"""The work list of a step's attention, and the positions where contexts are split.

NumPy only: the list is made on the host from lengths, and travels with the step's other arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.engine.step import StepInput

Int32s = NDArray[np.int32]

FIELDS = 9
"""Of an item: first token row, tokens, position of the first, start of the sequence's block ids,
first split, end of splits, parts of the tile, which of them this is, the tile's first scratch row.
"""

FIRST_SPLIT = 256
"""Tokens of a split at the start of a context: 4 tiles of 64, and 128 KiB of a head of 128 in
bfloat16, against 4 KiB for the state of 4 rows written and read."""

_EVEN_SPLITS = 16
_SPLITS_PER_DOUBLING = 8


def split_starts(max_context: int, windowed: bool) -> Int32s:
    """Where splits start, and the end of the last; it is past ``max_context``.

    16 splits of 256 tokens, then 8 of 512, 8 of 1024 and so on: a split is at most an eighth of
    what precedes it, so that there are enough to share, and 128K tokens have 56 to join where
    equal splits would be 512. With a window little of the context is visible, wherever that is,
    so all splits are 256.
    """
    starts = [0]
    size = FIRST_SPLIT
    while starts[-1] <= max_context:
        done = len(starts) - 1
        if (
            not windowed
            and done >= _EVEN_SPLITS
            and (done - _EVEN_SPLITS) % _SPLITS_PER_DOUBLING == 0
        ):
            size *= 2
        starts.append(starts[-1] + size)
    return np.array(starts, np.int32)


@dataclass(frozen=True)
class WorkPlanner:
    """Makes work lists of one attention geometry."""

    group: int
    """Query heads a KV head."""
    kv_heads: int
    tile_tokens: int
    """Tokens of a tile, ``ROWS // group``."""
    window: int | None
    starts: Int32s
    programs: int
    """How many programs share the list."""
    capacity: int
    """Scratch rows, each the state of a query head, of every KV head."""

    def plan(self, step: StepInput) -> Int32s:
        """The work list ``[1 + items, FIELDS]``; the first row holds the number of items.

        The longest items come first, since programs take them in turn. A tile is split where it
        would keep a program too long beside what each has to do on average; tiles of many rows,
        whose states are large, later than those of few. Tiles that find no scratch left stay whole.
        """
        counts = np.diff(step.query_starts).astype(np.int64)
        tiles = -(-counts // self.tile_tokens)
        of = np.repeat(np.arange(len(counts)), tiles)
        skipped = np.arange(len(of)) - np.repeat(np.cumsum(tiles) - tiles, tiles)
        skipped *= self.tile_tokens
        tokens = np.minimum(self.tile_tokens, counts[of] - skipped)
        position = step.context_lens[of] - counts[of] + skipped
        end = position + tokens
        oldest = np.zeros_like(end) if self.window is None else position - self.window + 1
        oldest = np.maximum(oldest, 0)
        first = np.searchsorted(self.starts, oldest, "right") - 1
        last = np.searchsorted(self.starts, end, "left")
        parts = last - first
        length = end - oldest
        rows = tokens * self.group

        mean = length.sum() * self.kv_heads / self.programs
        wanted = (parts > 1) & (length * np.where(rows <= 16, 8, 2) > mean)
        order = np.argsort(-length, kind="stable")
        wanted[order] &= np.cumsum(np.where(wanted, parts * rows, 0)[order]) <= self.capacity
        taken = np.where(wanted, parts * rows, 0)
        base = np.cumsum(taken) - taken

        pieces = np.where(wanted, parts, 1)
        of_tile = np.repeat(np.arange(len(of)), pieces)
        part = np.arange(len(of_tile)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        begin = first[of_tile] + part
        stop = np.where(wanted[of_tile], begin + 1, last[of_tile])
        items = np.empty((1 + len(of_tile), FIELDS), np.int32)
        items[0] = 0
        items[0, 0] = len(of_tile)
        columns = (
            (step.query_starts[of] + skipped)[of_tile],
            tokens[of_tile],
            position[of_tile],
            step.block_starts[of][of_tile],
            begin,
            stop,
            pieces[of_tile],
            part,
            base[of_tile],
        )
        seen = np.minimum(self.starts[stop], end[of_tile]) - np.maximum(
            self.starts[begin], oldest[of_tile]
        )
        items[1:] = np.stack(columns, axis=1)[np.argsort(-seen, kind="stable")]
        return items
