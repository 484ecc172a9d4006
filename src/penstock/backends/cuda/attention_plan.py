"""The work list of a step's attention, and the positions where contexts are split.

NumPy only: the list is made on the host from lengths, and travels with the step's other arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.cache.geometry import Chunk, Window
from penstock.interface.draft_tree import MAX_ROWS, path_rows, trunk_rows
from penstock.interface.step import StepInput

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

FIELDS = 12
"""Columns of a work item: first token row, number of tokens, their lowest position, start of the
sequence's block ids, first split, end of splits, number of parts of the tile, index of this part,
the tile's first scratch row, end of the tokens that it attends to, position of the fork if the
tokens are behind one, else -1, and the row in ``tree_paths`` of the first token."""

FIRST_SPLIT = 256
"""Tokens of a split at the start of a context: 4 tiles of 64, and 128 KiB of a head of 128 in
bfloat16, against 4 KiB for the state of 4 rows written and read."""

_ITEM_TOKENS = 64
"""What an item takes beside its keys and values, in tokens of these: queries are read and a result
is written, and the pipeline fills, about 2 us on an H100, in which two programs of a multiprocessor
read as many tokens each."""
STATE_TOKENS = 2
"""What a row's state takes that is written and read, in tokens: 1 KiB of a head of 128 against 512
bytes."""
_FEW_ROWS = 16
_BALANCED = 1.1
"""Programs that have at most so much more to do than the average are balanced."""

_EVEN_SPLITS = 16
_SPLITS_PER_DOUBLING = 8


def split_starts(max_context: int, windowed: bool, first: int = FIRST_SPLIT) -> Int32s:
    """Where splits start, and the end of the last; it is past ``max_context``.

    16 splits of ``first`` tokens, 256, then 8 of 512, 8 of 1024 and so on: a split is at most an
    eighth of what precedes it, so that there are enough to share, and 128K tokens have 56 to join
    where equal splits would be 512. With a window little of the context is visible, wherever that
    is, so all splits are ``first``.
    """
    starts = [0]
    size = first
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
    blocks = step.groups[0].block_starts[:-1].astype(np.int64)  # equal in all groups
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
class _Tiles:
    """Which splits tiles see, and what of the sequence's tokens."""

    first: Int64s
    last: Int64s  # the end of splits
    oldest: Int64s
    end: Int64s
    rows: Int64s  # of states, of a KV head


@dataclass(frozen=True)
class WorkPlanner:
    """Makes work lists of one attention geometry."""

    group: int
    """Number of query heads per KV head."""
    kv_heads: int
    tile_tokens: int
    """Number of tokens in a tile, ``ROWS // group``."""
    window: Window | None
    starts: Int32s
    programs: int
    """Number of programs that share the work list."""
    capacity: int
    """Number of scratch rows, each the state of one query head, for every KV head."""
    state_tokens: int = STATE_TOKENS
    """What a scratch row takes that is written and read, in tokens."""

    def plan(self, step: StepInput) -> Int32s:
        """The work list ``[1 + items, FIELDS]``; the first row holds the number of items.

        The longest items come first, since programs take them in turn. As few tiles are split as
        let all programs end at about the same time (:meth:`_split`). Tiles that find no scratch
        left stay whole. No result depends on which are split.
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
        oldest = self._oldest(position)
        first = np.searchsorted(self.starts, oldest, "right") - 1
        last = np.searchsorted(self.starts, end, "left")
        parts = last - first
        rows = tokens * self.group

        wanted = self._split(_Tiles(first, last, oldest, end, rows))
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

    def _oldest(self, position: Int64s) -> Int64s:
        """The first token that queries at each ``position`` see."""
        if self.window is None:
            return np.zeros_like(position)
        if isinstance(self.window, Chunk):
            return position - position % self.window.size
        return np.maximum(position - self.window + 1, 0)

    def _split(self, tiles: _Tiles) -> NDArray[np.bool_]:
        """Which tiles to split.

        None where that keeps all programs busy to the end, as 64 sequences of 1K do: 512 items for
        264 programs. Otherwise those that are longer than what a program has to do on average;
        then those, too, that would be a last round for a part of the programs; then shorter and
        shorter ones, those of many rows, whose states are large, later than those of few.
        """
        parts, length = tiles.last - tiles.first, tiles.end - tiles.oldest
        mean = float((length + _ITEM_TOKENS).sum()) * self.kv_heads / self.programs
        order = np.argsort(-length, kind="stable")
        may = parts > 1
        few = may & (tiles.rows <= _FEW_ROWS)
        long = may & (length > mean)
        shorter = long
        best, least = np.zeros(len(length), np.bool_), np.inf
        for attempt in range(6):
            if attempt == 0:
                wanted = best
            elif attempt == 1:
                wanted = long
            elif attempt == 2:
                whole = order[~long[order]]
                round_ = max(1, self.programs // self.kv_heads)
                wanted = long.copy()
                wanted[whole[len(whole) // round_ * round_ :]] = True
                wanted &= may
            else:
                shorter = shorter | (few if attempt > 3 else may) & (length << attempt - 2 > mean)
                wanted = shorter
            states = np.cumsum(np.where(wanted, parts * tiles.rows, 0)[order])
            if states.size and states[-1] > self.capacity:
                wanted = wanted.copy()
                wanted[order] &= states <= self.capacity
            if least < np.inf and np.array_equal(wanted, best):
                continue
            longest = self._longest(tiles, wanted)
            if longest < least:
                best, least = wanted, longest
            if least <= _BALANCED * mean or np.array_equal(wanted, may):
                break
        return best

    def _longest(self, tiles: _Tiles, wanted: NDArray[np.bool_]) -> float:
        """What the program that has most to do has to do, in tokens; items are dealt out in turn,
        the longest first."""
        length = tiles.end - tiles.oldest
        costs = length[~wanted] + _ITEM_TOKENS
        if wanted.any():
            parts = (tiles.last - tiles.first)[wanted]
            of = np.repeat(np.arange(len(parts)), parts)
            split = np.arange(len(of)) - np.repeat(np.cumsum(parts) - parts, parts)
            split += tiles.first[wanted][of]
            seen = np.minimum(self.starts[split + 1], tiles.end[wanted][of])
            seen = seen - np.maximum(self.starts[split], tiles.oldest[wanted][of])
            states = self.state_tokens * tiles.rows[wanted][of]
            costs = np.concatenate([costs, seen + states + _ITEM_TOKENS])
        costs = -np.sort(-costs)
        firsts = np.arange(0, len(costs) * self.kv_heads, self.programs) // self.kv_heads
        return float(costs[firsts].sum())
