"""The buffers and weights of one of several ranks, while its ops are appended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.errors import ConfigError
from penstock.interface.plan_weights import PlanWeight, Share
from penstock.interface.sources import RowsOf, RowsOfEach, Source
from penstock.plan.ops import AllGather, Buffer, BufferName, Op, WeightName
from penstock.plan.plan import Plan
from penstock.plan.shard_grains import BY_HEAD

Columns = tuple[int, int]
"""The range of a buffer's columns that a rank has."""


class Shares:
    """Which columns of each buffer of ``plan``, and which rows of each weight, the rank has."""

    def __init__(self, plan: Plan, rank: int, world: int) -> None:
        self._whole = plan
        self._rank = rank
        self._world = world
        self._ops: list[Op] = []
        self._buffers: dict[BufferName, Buffer] = {}
        self._weights: dict[WeightName, PlanWeight] = {}
        self._cut: dict[BufferName, Columns] = {}
        """Buffers of which the rank has computed its own columns, under :func:`share_name`."""
        self._gathered: set[BufferName] = set()
        """Those of them that all ranks have whole as well."""

    def _share(self, n: int, grain: int) -> Columns | None:
        """The rank's columns of ``n``, in whole grains; None where there are fewer of these than
        ranks, so that all compute all."""
        grains = n // grain
        if grains < self._world:
            return None
        first, end = (grains * r // self._world * grain for r in (self._rank, self._rank + 1))
        return first, end

    def _stays_cut(self, op: Op) -> bool:
        """Whether the rank can compute its columns of the op's output from those that it has."""
        cuts = {self._cut.get(name) for name in op.reads}
        if len(cuts) != 1:
            return False
        (columns,) = cuts
        if columns is None:
            return False
        return not isinstance(op, BY_HEAD) or all(edge % op.head_dim == 0 for edge in columns)

    def _own_heads(self, names: Sequence[BufferName], heads: int) -> Columns | None:
        """The heads of all these buffers that the rank has; None where it has not the same of
        each, or has all."""
        own = set()
        for name in names:
            columns, size = self._cut.get(name), self._whole.buffers[name].cols // heads
            if columns is None or any(edge % size for edge in columns):
                return None
            own.add((columns[0] // size, columns[1] // size))
        return own.pop() if len(own) == 1 else None

    def _own(self, name: BufferName, columns: int) -> BufferName:
        """The rank's share of a buffer of heads."""
        first = self._rank * columns
        if self._cut.get(name) != (first, first + columns):
            raise ConfigError(
                "the model computes queries, keys or values over all heads at once, so that ranks "
                "cannot share its KV heads; run it on one"
            )
        return share_name(name)

    def _read_whole(self, name: BufferName) -> None:
        """Have all of a buffer's columns, under its own name."""
        if name in self._cut and name not in self._gathered:
            self._ops.append(AllGather(share_name(name), name))
            self._buffers[name] = self._whole.buffers[name]
            self._gathered.add(name)

    def _write_whole(self, name: BufferName) -> None:
        self._buffers[name] = self._whole.buffers[name]
        self._cut.pop(name, None)
        self._gathered.discard(name)

    def _write_cut(self, name: BufferName, columns: Columns) -> BufferName:
        own = share_name(name)
        width = columns[1] - columns[0]
        self._buffers[own] = replace(self._whole.buffers[name], name=own, cols=width)
        self._cut[name] = columns
        self._gathered.discard(name)
        return own

    def _rows(self, name: WeightName, *runs: Columns, each: bool = False) -> WeightName:
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
