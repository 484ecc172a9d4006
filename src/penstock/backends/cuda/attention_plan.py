"""The work list of a step's attention, and the positions where contexts are split.

NumPy only: the list is made on the host from lengths, and travels with the step's other arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.engine.draft_tree import MAX_ROWS, path_rows, trunk_rows
from penstock.engine.step import StepInput

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

FIELDS = 12
"""Of an item: first token row, tokens, their lowest position, start of the sequence's block ids,
first split, end of splits, parts of the tile, which of them this is, the tile's first scratch row,
the end of what its tokens see, where behind a fork the position of the fork, or -1, and the row in
``tree_paths`` of the first token.
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
class _Lines:
    """Runs of a sequence's rows that tiles may take together: up to its fork, and behind it."""

    first_row: Int64s  # among the step's
    tokens: Int64s
    position: Int64s  # of the first row
    block_start: Int64s  # of the sequence
    fork: Int64s  # -1: these are up to the fork
    first_path: Int64s  # the first row's in tree_paths


def _lines(step: StepInput) -> _Lines:
    starts = step.query_starts.astype(np.int64)
    counts = np.diff(starts)
    position = step.context_lens.astype(np.int64) - counts
    blocks = step.block_starts[:-1].astype(np.int64)
    if not len(step.tree_parents):
        nothing = np.zeros_like(counts)
        return _Lines(starts[:-1], counts, position, blocks, nothing - 1, nothing)
    trunks = _trunks(step)
    rest = counts - trunks
    fork = position + trunks

    def paired(line: Int64s, behind: Int64s) -> Int64s:
        return np.stack([line, behind], axis=1).reshape(-1)[held]

    held = np.stack([trunks, rest], axis=1).reshape(-1) > 0
    return _Lines(
        first_row=paired(starts[:-1], starts[:-1] + trunks),
        tokens=paired(trunks, rest),
        position=paired(position, fork),
        block_start=paired(blocks, blocks),
        fork=paired(np.full_like(fork, -1), fork),
        first_path=paired(np.zeros_like(fork), np.cumsum(rest) - rest),
    )


def _trunks(step: StepInput) -> Int64s:
    parents = np.split(step.tree_parents, step.query_starts[1:-1])
    return np.array([trunk_rows(each) for each in parents], np.int64)


def tree_paths(step: StepInput) -> Int32s:
    """``DeviceStep.tree_paths`` of a step whose tree was checked."""
    if not len(step.tree_parents):
        return np.empty((0, MAX_ROWS), np.int32)
    trunks = _trunks(step)
    counts = np.diff(step.query_starts)
    paths = np.zeros((int((counts - trunks).sum()), MAX_ROWS), np.int32)
    at = 0
    for s, trunk in enumerate(trunks.tolist()):
        first, end = step.query_starts[s], step.query_starts[s + 1]
        start = step.context_lens[s] - (end - first)
        for row in range(trunk, end - first):
            path = path_rows(step.tree_parents[first:end], row, trunk)
            paths[at, : len(path)] = start + np.array(path, np.int32)
            at += 1
    return paths


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
        lines = _lines(step)
        tiles = -(-lines.tokens // self.tile_tokens)
        of = np.repeat(np.arange(len(tiles)), tiles)
        skipped = np.arange(len(of)) - np.repeat(np.cumsum(tiles) - tiles, tiles)
        skipped *= self.tile_tokens
        tokens = np.minimum(self.tile_tokens, lines.tokens[of] - skipped)
        row = lines.first_row[of] + skipped
        position = lines.position[of] + skipped
        end = position + tokens
        if (lines.fork >= 0).any():  # tiles share out all rows in order
            position = np.minimum.reduceat(step.positions, row).astype(np.int64)
            end = np.maximum.reduceat(step.positions, row).astype(np.int64) + 1
        path = np.where(lines.fork[of] < 0, 0, lines.first_path[of] + skipped)
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
            row[of_tile],
            tokens[of_tile],
            position[of_tile],
            lines.block_start[of][of_tile],
            begin,
            stop,
            pieces[of_tile],
            part,
            base[of_tile],
            end[of_tile],
            lines.fork[of][of_tile],
            path[of_tile],
        )
        seen = np.minimum(self.starts[stop], end[of_tile]) - np.maximum(
            self.starts[begin], oldest[of_tile]
        )
        items[1:] = np.stack(columns, axis=1)[np.argsort(-seen, kind="stable")]
        return items
