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


class Retention(Protocol[T]):
    """An order in which what a tier holds makes room. It knows no clock and nothing of the
    future."""

    def __len__(self) -> int: ...

    def __contains__(self, item: T) -> bool: ...

    def add(self, item: T, parent: T | None, at: float) -> None:
        """An item comes in that is not there, and is used at that time. ``parent``: what comes
        before it in its chain, whether that is there or not."""
        ...

    def use(self, item: T, at: float) -> None:
        """An item that is there was asked for at that time."""
        ...

    def drop(self, item: T) -> None:
        """An item that is there is no more."""
        ...

    def victims(self, count: int, staying: Collection[T] = ()) -> list[T]:
        """Up to so many items that make room first, in that order; none of those that are
        ``staying``, nor of what comes before them. They stay until they are dropped."""
        ...


@dataclass(slots=True)
class _Item(Generic[T]):
    parent: T | None
    at: float
    turn: int
    """A number that tells apart what was used at one time: the greatest was used last."""


_Ended = tuple[float, int, T]
"""The end of a chain: when it was used, its turn, and the item."""
_STALE: Final = 64


class Lru(Retention[T]):
    """The end of a chain that was used least recently first.

    What comes before an item was in use when that was: so it is as recent.
    """

    def __init__(self) -> None:
        self._items: dict[T, _Item[T]] = {}
        self._children: dict[T, int] = {}
        """How many items that are there come right behind one, which need not be there."""
        self._ends: list[_Ended[T]] = []
        """A heap of items with nothing behind them; some entries are stale."""
        self._turns = 0

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, item: T) -> bool:
        return item in self._items

    def add(self, item: T, parent: T | None, at: float) -> None:
        self._turns += 1
        self._items[item] = _Item(parent, at, self._turns)
        if parent is not None:
            self._children[parent] = self._children.get(parent, 0) + 1
        self._end(item)

    def use(self, item: T, at: float) -> None:
        found = self._items[item]
        self._turns += 1
        found.at, found.turn = max(found.at, at), self._turns
        self._end(item)

    def drop(self, item: T) -> None:
        gone = self._items.pop(item)
        parent = gone.parent
        if parent is None:
            return
        self._children[parent] -= 1
        if self._children[parent] == 0:
            del self._children[parent]
        if (before := self._items.get(parent)) is not None:
            before.at = max(before.at, gone.at)
            self._end(parent)

    def victims(self, count: int, staying: Collection[T] = ()) -> list[T]:
        victims: list[T] = []
        passed: set[_Ended[T]] = set()
        left: dict[T, int] = {}
        """How many children that are no victims an item has, where some are."""
        ends: list[_Ended[T]] = []
        """Those that come to be ends as victims go."""
        while len(victims) < count and (self._ends or ends):
            if not ends or (self._ends and self._ends[0] < ends[0]):
                end = heapq.heappop(self._ends)
                if end in passed or not self._is_end(end):
                    continue
                passed.add(end)
            else:
                end = heapq.heappop(ends)
            item = end[2]
            if item in staying:
                continue
            victims.append(item)
            parent = self._items[item].parent
            if parent is None or parent not in self._items:
                continue
            left[parent] = left.get(parent, self._children[parent]) - 1
            if left[parent] == 0:
                before = self._items[parent]
                heapq.heappush(ends, (max(before.at, end[0]), before.turn, parent))
        for end in passed:
            heapq.heappush(self._ends, end)
        return victims

    def _end(self, item: T) -> None:
        """Take an item among the ends, if it is one."""
        if item in self._children:
            return
        found = self._items[item]
        heapq.heappush(self._ends, (found.at, found.turn, item))
        if len(self._ends) > 2 * len(self._items) + _STALE:
            self._ends = sorted(end for end in set(self._ends) if self._is_end(end))

    def _is_end(self, end: _Ended[T]) -> bool:
        """Whether an entry is true still."""
        at, turn, item = end
        found = self._items.get(item)
        return (
            found is not None
            and (found.at, found.turn) == (at, turn)
            and item not in self._children
        )
