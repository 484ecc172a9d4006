"""The buffers and weights of one of several ranks, while its ops are appended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.errors import ConfigError
from penstock.interface.plan_weights import PlanWeight, Share
from penstock.interface.sources import RowsOf, RowsOfEach, Source
from penstock.plan.ops import (
    AllGather,
    Buffer,
    BufferName,
    Columns,
    GatherToFirst,
    Op,
    WeightName,
)
from penstock.plan.plan import Plan
from penstock.plan.shard_columns import BY_HEAD
from penstock.plan.shard_heads import Cut, Range, evenly


class Shares:
    """Which columns of each buffer of ``plan``, and which rows of each weight, the rank has."""

    def __init__(self, plan: Plan, rank: int, world: int) -> None:
        self._whole = plan
        self._rank = rank
        self._world = world
        self._ops: list[Op] = []
        self._buffers: dict[BufferName, Buffer] = {}
        self._weights: dict[WeightName, PlanWeight] = {}
        self._cut: dict[BufferName, Cut] = {}
        """Buffers of which each rank has its own columns, under :func:`share_name`. What is decided
        by them is decided by those of all ranks, so that all run the same ops."""
        self._gathered: set[BufferName] = set()
        """Those of them that all ranks have whole as well."""
        self._at_first: set[BufferName] = set()
        """Those of them that rank 0 has whole as well, and no other rank."""

    def _share(self, n: int) -> Cut | None:
        """The columns of ``n`` that each rank has; None where there are fewer than ranks, so that
        all compute all."""
        return None if n < self._world else evenly(n, self._world)

    def _mine(self, cut: Cut) -> Range:
        return cut[self._rank]

    def _stays_cut(self, op: Op) -> bool:
        """Whether each rank can compute its columns of the op's output from those that it has."""
        cuts = {self._cut.get(name) for name in op.reads}
        if len(cuts) != 1:
            return False
        (cut,) = cuts
        return cut is not None and (not isinstance(op, BY_HEAD) or in_whole(cut, op.head_dim))

    def _own_heads(self, names: Sequence[BufferName], heads: int) -> Cut | None:
        """The heads of all these buffers that each rank has; None where it has not the same of
        each, or has all."""
        own = set()
        for name in names:
            cut, size = self._cut.get(name), self._whole.buffers[name].cols // heads
            if cut is None or not in_whole(cut, size):
                return None
            own.add(tuple((a // size, b // size) for a, b in cut))
        return own.pop() if len(own) == 1 else None

    def _own(self, name: BufferName, cut: Cut) -> BufferName:
        """The rank's share of a buffer of heads."""
        if self._cut.get(name) != cut:
            raise ConfigError(
                "the model computes queries, keys or values over all heads at once, in a way that "
                "ranks cannot share; run it on one"
            )
        return share_name(name)

    def _take(self, name: BufferName, cut: Cut) -> None:
        """Have the rank's columns of a buffer that all have whole, which stays."""
        self._ops.append(Columns(name, self._write_cut(name, cut), self._mine(cut)[0]))
        self._gathered.add(name)

    def _read_whole(self, name: BufferName) -> None:
        """Have all of a buffer's columns, under its own name."""
        if name in self._cut and name not in self._gathered:
            self._ops.append(AllGather(share_name(name), name, self._cut[name]))
            self._buffers[name] = self._whole.buffers[name]
            self._gathered.add(name)

    def _read_by_first(self, name: BufferName) -> BufferName:
        """Return the buffer in which rank 0 has all of a buffer's columns, and other ranks have
        their own, if they have not all."""
        if name not in self._cut or name in self._gathered:
            return name
        own, first = share_name(name), self._rank == 0
        if name not in self._at_first:
            self._ops.append(GatherToFirst(own, name if first else None, self._cut[name]))
            self._at_first.add(name)
        if first:
            self._buffers[name] = self._whole.buffers[name]
        return name if first else own

    def _write_whole(self, name: BufferName) -> None:
        self._buffers[name] = self._whole.buffers[name]
        self._cut.pop(name, None)
        self._gathered.discard(name)
        self._at_first.discard(name)

    def _write_cut(self, name: BufferName, cut: Cut) -> BufferName:
        own = share_name(name)
        first, end = self._mine(cut)
        self._buffers[own] = replace(self._whole.buffers[name], name=own, cols=end - first)
        self._cut[name] = cut
        self._gathered.discard(name)
        self._at_first.discard(name)
        return own

    def _rows(self, name: WeightName, *runs: Range, each: bool = False) -> WeightName:
        """The rank's rows of a weight, or, one run of them, of each matrix of a stack, under a name
        of their own: others may read it whole."""
        own, whole = share_name(name), self._whole.weights[name]
        source: Source = RowsOf(whole.source, runs)
        if each:
            ((first, end),) = runs
            source = RowsOfEach(whole.source, first, end - first)
        share = Share(name, whole.shape, runs, each)
        self._weights[own] = replace(whole, source=source, share=share)
        return own


def share_name(name: str) -> str:
    return f"{name}.share"


def in_whole(cut: Cut, size: int) -> bool:
    """Whether each rank has whole pieces of ``size``."""
    return all(edge % size == 0 for columns in cut for edge in columns)
