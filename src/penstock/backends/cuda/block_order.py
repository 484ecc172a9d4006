"""The order of work on several streams that touches the same blocks of the cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.step import Int32s, StepInput


class Event(Protocol):
    """A point of a stream, as ``torch.cuda.Event``."""

    def query(self) -> bool:
        """Whether all work before it is done."""
        ...


E = TypeVar("E", bound=Event)


class Touched(NamedTuple):
    """The blocks that some work touches; a block may be named several times."""

    reads: tuple[Int32s, ...] = ()
    writes: tuple[Int32s, ...] = ()

    @classmethod
    def of(cls, step: StepInput) -> Touched:
        """Those of a step. Blocks behind a window are counted that it does not read."""
        tables = tuple(group.block_ids for group in step.groups)
        written = tuple(group.slots // BLOCK_SIZE for group in step.groups)
        copied, moved = step.block_copies, step.slot_moves // BLOCK_SIZE
        return cls((*tables, copied[:, 0], moved[:, 0]), (*written, copied[:, 1], moved[:, 1]))


class _Queued(NamedTuple, Generic[E]):
    lane: str
    touched: Touched
    event: E


class BlockOrder(Generic[E]):
    """Work that was queued and is not known to be done, each on a *lane*: a stream, on which work
    is done in the order in which it was queued.

    Two pieces of work on different lanes go in order where one of them writes a block that the
    other touches; otherwise they may run at the same time.
    """

    def __init__(self, num_blocks: int) -> None:
        self._queued: deque[_Queued[E]] = deque()
        self._written: NDArray[np.bool_] = np.zeros(num_blocks, np.bool_)
        self._any: NDArray[np.bool_] = np.zeros(num_blocks, np.bool_)

    def __len__(self) -> int:
        """Pieces of work that were not done when last looked at."""
        return len(self._queued)

    def waits_for(self, lane: str, touched: Touched) -> list[E]:
        """What must be done before work that is to be queued on ``lane``: of each other lane the
        last event of those that concern it."""
        self._forget_done()
        if all(each.lane == lane for each in self._queued):
            return []
        last: dict[str, E] = {}
        _mark(self._written, touched.writes, True)
        _mark(self._any, (*touched.reads, *touched.writes), True)
        for each in self._queued:
            if each.lane == lane:
                continue
            if _meets(self._any, each.touched.writes) or _meets(self._written, each.touched.reads):
                last[each.lane] = each.event
        _mark(self._written, touched.writes, False)
        _mark(self._any, (*touched.reads, *touched.writes), False)
        return list(last.values())

    def queued(self, lane: str, touched: Touched, event: E) -> None:
        """Work was queued on ``lane``, and ``event`` behind it."""
        self._queued.append(_Queued(lane, touched, event))

    def _forget_done(self) -> None:
        if self._queued:
            self._queued = deque(each for each in self._queued if not each.event.query())


def _mark(marks: NDArray[np.bool_], blocks: Sequence[Int32s], to: bool) -> None:
    for each in blocks:
        marks[each] = to


def _meets(marks: NDArray[np.bool_], blocks: Sequence[Int32s]) -> bool:
    return any(bool(marks[each].any()) for each in blocks)
