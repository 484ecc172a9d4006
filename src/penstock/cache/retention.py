"""Which blocks of a full tier make room for others.

A block is of use only with all that come before it in its chain. So while one is there, those
before it stay: :class:`Lru` takes chains from their ends. Items without a parent stand for
themselves (blocks of layers with a window, which need the last few before them alone).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

T = TypeVar("T", bound=Hashable)

ONCE_AGES: Final = 2.0
"""How many times as fast what was used once ages as what was used again: in Mooncake's trace of
conversations 3 % more hits than with 1 on a disk of a seventh of what goes through it, 7 % more on
one of half that size, and as many on a large one (benchmarks/experiments.md)."""


class Retention(Protocol[T]):
    """An order in which what a tier holds makes room. It knows no clock, and nothing of the
    future."""

    def __len__(self) -> int: ...

    def __contains__(self, item: T) -> bool: ...

    def add(self, item: T, parent: T | None, at: float, is_again: bool = False) -> None:
        """An item comes in that is not there, and is used at that time. ``parent``: what comes
        before it in its chain, whether that is there or not. ``is_again``: whether it was used
        before."""
        ...

    def use(self, item: T, at: float) -> None:
        """An item that is there was asked for again at that time."""
        ...

    def keep(self, item: T, until: float) -> None:
        """An item that is there counts as used last at a time to come, or later."""
        ...

    def drop(self, item: T) -> None:
        """An item that is there is no more."""
        ...

    def victims(self, count: int, now: float, staying: Collection[T] = ()) -> list[T]:
        """Up to so many items that make room first, in that order; none of those that are
        ``staying``, nor of what comes before them. They stay until they are dropped."""
        ...


@dataclass(slots=True)
class _Item(Generic[T]):
    parent: T | None
    at: float
    turn: int
    """A number that tells apart what was used at one time: the greatest was used last."""
    is_again: bool
    """Whether it was asked for again since it came first."""


_Ended = tuple[float, int, T]
"""The end of a chain: when it was used, its turn, and the item."""
_STALE: Final = 64
_REMEMBERED: Final = 2
"""Names of what made room, for each item that is there: with 1 there are 0.3 % fewer hits, and with
none 1 %, where the rule gains 3 %."""


class Lru(Retention[T]):
    """The end of a chain that was used least recently first, by a time that passes faster for what
    was used once: what came once, and never again, is mostly not asked for any more.

    What comes before an item was in use when that was: so it is as recent. What comes again after
    it made room was used before: twice as many names as there are items are remembered.
    """

    def __init__(self, once_ages: float = ONCE_AGES) -> None:
        """``once_ages``: how many times as fast what was used once ages; 1 is plain LRU."""
        self._once_ages = once_ages
        self._items: dict[T, _Item[T]] = {}
        self._children: dict[T, int] = {}
        """How many items that are there come right behind one, which need not be there."""
        self._ends: dict[bool, list[_Ended[T]]] = {False: [], True: []}
        """Heaps of the items with nothing behind them, those used once and those used again; some
        entries are stale."""
        self._gone: dict[T, None] = {}
        """What is there no more, the latest last."""
        self._turns = 0

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item: T) -> bool:
        return item in self._items

    def add(self, item: T, parent: T | None, at: float, is_again: bool = False) -> None:
        self._turns += 1
        is_again = is_again or item in self._gone
        self._gone.pop(item, None)
        self._items[item] = _Item(parent, at, self._turns, is_again)
        if parent is not None:
            self._children[parent] = self._children.get(parent, 0) + 1
        self._end(item)

    def use(self, item: T, at: float) -> None:
        self._items[item].is_again = True
        self.keep(item, at)

    def keep(self, item: T, until: float) -> None:
        found = self._items[item]
        self._turns += 1
        found.at, found.turn = max(found.at, until), self._turns
        self._end(item)

    def drop(self, item: T) -> None:
        gone = self._items.pop(item)
        self._gone[item] = None
        while len(self._gone) > _REMEMBERED * len(self._items):
            del self._gone[next(iter(self._gone))]
        parent = gone.parent
        if parent is None:
            return
        self._children[parent] -= 1
        if self._children[parent] == 0:
            del self._children[parent]
        if (before := self._items.get(parent)) is not None:
            before.at = max(before.at, gone.at)
            self._end(parent)

    def victims(self, count: int, now: float, staying: Collection[T] = ()) -> list[T]:
        victims: list[T] = []
        passed: set[_Ended[T]] = set()
        left: dict[T, int] = {}
        """How many children that are no victims an item has, where some are."""
        used: dict[T, float] = {}
        """When such an item was used, as one of these victims was."""
        coming: dict[bool, list[_Ended[T]]] = {False: [], True: []}
        """Heaps of those that come to be ends as victims go."""
        while len(victims) < count:
            heaps = [
                (is_again, heap)
                for is_again in (False, True)
                for heap in (self._whole(is_again, passed), coming[is_again])
                if heap
            ]
            if not heaps:
                break
            is_again, heap = min(heaps, key=lambda each: self._order(each[1][0], each[0], now))
            end = heapq.heappop(heap)
            if heap is self._ends[is_again]:
                passed.add(end)
            item = end[2]
            if item in staying:
                continue
            victims.append(item)
            parent = self._items[item].parent
            if parent is None or parent not in self._items:
                continue
            before = self._items[parent]
            left[parent] = left.get(parent, self._children[parent]) - 1
            used[parent] = max(used.get(parent, before.at), end[0])
            if left[parent] == 0:
                heapq.heappush(coming[before.is_again], (used[parent], before.turn, parent))
        for end in passed:
            heapq.heappush(self._ends[self._items[end[2]].is_again], end)
        return victims

    def _order(self, end: _Ended[T], is_again: bool, now: float) -> tuple[float, int]:
        """What makes room first is the least. What is kept until a time to come has not aged."""
        at, turn, _ = end
        age = now - at
        return -age * (1.0 if is_again or age < 0 else self._once_ages), turn

    def _end(self, item: T) -> None:
        """Take an item among the ends, if it is one."""
        if item in self._children:
            return
        found = self._items[item]
        ends = self._ends[found.is_again]
        heapq.heappush(ends, (found.at, found.turn, item))
        if len(ends) > 2 * len(self._items) + _STALE:
            kept = {end for end in ends if self._is_end(end, found.is_again)}
            self._ends[found.is_again] = sorted(kept)

    def _whole(self, is_again: bool, passed: Collection[_Ended[T]]) -> list[_Ended[T]]:
        """A heap of ends whose first entry is true, and was not ``passed``."""
        ends = self._ends[is_again]
        while ends and (ends[0] in passed or not self._is_end(ends[0], is_again)):
            heapq.heappop(ends)
        return ends

    def _is_end(self, end: _Ended[T], is_again: bool) -> bool:
        """Whether an entry is true still."""
        at, turn, item = end
        found = self._items.get(item)
        return (
            found is not None
            and (found.at, found.turn, found.is_again) == (at, turn, is_again)
            and item not in self._children
        )
