"""Which rows of a step have which adapter, as kernels read it: lists that the host makes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.backends.cuda.buckets import Bucket
from penstock.backends.cuda.check import StepBounds
from penstock.backends.cuda.kernels.adapters import FIELDS, MOST_SPLIT, tile_height
from penstock.backends.cuda.kernels.tiles import most_tiles
from penstock.interface.adapters import AdapterSlots
from penstock.interface.step import Int32s, StepInput
from penstock.plan import ops
from penstock.plan.ops.base import RowBase
from penstock.plan.plan import Plan

_BASES: tuple[RowBase, ...] = ("T", "S", "R")


@dataclass(frozen=True)
class AdapterRows:
    """Makes the lists of a plan that serves adapters: two for each kind of rows that these change.

    *tiles* int32 ``[tiles, 3]``: the slot, where the tile's rows begin in the order, and how many
    they are, at most ``tile_height`` of the step's rows of that kind; a tile of no rows is left
    out by kernels. *order*: the numbers of the rows that have an adapter, those of one slot behind
    another's, and of each ascending.

    A step of no adapter has lists of no length, for which nothing is launched. A padded step's have
    the length that any step of its bucket may need, since a graph launches the same whatever is in
    them; its rows of padding are in no tile.
    """

    slots: int
    bases: tuple[RowBase, ...]

    @classmethod
    def of(cls, plan: Plan, slots: AdapterSlots) -> AdapterRows:
        """Return what makes the lists of ``plan``. Raises ValueError where no kernel adds."""
        met = {plan.buffers[op.low].rows for op in plan.ops if isinstance(op, ops.AdapterDown)}
        if any(rows.times != 1 for rows in met):
            raise ValueError("adapters add to several rows of a token, which no kernel does")
        used = {rows.base for rows in met}
        return cls(slots.count, tuple(base for base in _BASES if base in used))

    def index(self, base: RowBase) -> int:
        """Return where the tiles of a kind of rows are among a step's lists; its order follows."""
        return 2 * self.bases.index(base)

    def plan(self, step: StepInput) -> list[Int32s]:
        """Return the lists of a step that is launched op by op. Where its sequences have a place
        for adapters and none has any, there is an empty tile of each kind."""
        if len(step.adapters) == 0:
            return [np.empty(0, np.int32)] * (2 * len(self.bases))
        lists: list[Int32s] = []
        for slots in self._slots(step):
            tiles, order = tiles_of(slots, tile_height(len(slots)))
            lists += [tiles if len(tiles) else np.zeros((1, FIELDS), np.int32), order]
        return lists

    def plan_padded(self, step: StepInput, bucket: Bucket) -> list[Int32s]:
        """Return the lists of a step that is padded to ``bucket``."""
        lists: list[Int32s] = []
        none = np.empty(0, np.int32)
        own = self._slots(step) if len(step.adapters) else [none] * len(self.bases)
        for base, slots in zip(self.bases, own, strict=True):
            rows = bucket.tokens if base == "T" else bucket.rows
            height = tile_height(rows)
            tiles, order = tiles_of(slots, height)
            padded = np.zeros((most_tiles(rows, self.slots, height), FIELDS), np.int32)
            padded[: len(tiles)] = tiles
            lists += [padded, np.concatenate([order, np.zeros(rows - len(order), np.int32)])]
        return lists

    def most(self, bounds: StepBounds) -> list[int]:
        """Return the greatest number of integers of each list."""
        counts: dict[RowBase, int] = {
            "T": bounds.max_tokens,
            "S": bounds.max_selected_rows,
            "R": bounds.max_logit_rows,
        }
        sizes = []
        for base in self.bases:
            most = counts[base]
            tiles = max(
                most_tiles(rows, self.slots, tile_height(rows))
                for rows in {most, min(most, MOST_SPLIT)}
            )
            sizes += [max(tiles, 1) * FIELDS, most]
        return sizes

    def _slots(self, step: StepInput) -> list[Int32s]:
        """The slot of each row of each kind."""
        tokens = step.row_adapters()
        of_logits = tokens[step.logit_rows]
        rows: dict[RowBase, Int32s] = {
            "T": tokens,
            "S": np.concatenate([of_logits, tokens[step.hidden_rows]]),
            "R": of_logits,
        }
        return [rows[base] for base in self.bases]


def tiles_of(slots: Int32s, height: int) -> tuple[Int32s, Int32s]:
    """Return tiles ``[tiles, FIELDS]`` of at most ``height`` rows each, and the order of rows.

    slots ``[rows]``: the slot of each row's adapter, negative for rows without one.
    """
    adapted = np.flatnonzero(slots >= 0)
    order = adapted[np.argsort(slots[adapted], kind="stable")].astype(np.int32)
    sorted_slots = slots[order]
    starts = np.flatnonzero(np.diff(sorted_slots, prepend=-1))
    counts = np.diff(starts, append=len(order))
    each = -(-counts // height)
    run = np.repeat(np.arange(len(starts)), each)
    within = (np.arange(len(run)) - np.repeat(np.cumsum(each) - each, each)) * height
    fields = (
        sorted_slots[starts[run]],
        starts[run] + within,
        np.minimum(counts[run] - within, height),
    )
    return np.stack(fields, axis=1).astype(np.int32), order
