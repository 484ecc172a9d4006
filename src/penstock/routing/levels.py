"""Replicas in the order of their loads."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final, Protocol

from penstock.routing.query import bits

_FEW: Final = 8
"""Replicas whose levels are looked up one by one; of more the levels are gone through, of which the
first few have one of them."""


class Levels(Protocol):
    """A level, a whole number, for each replica; and the least of any set of replicas."""

    @property
    def lowest(self) -> int:
        """The least of all replicas. Raises IndexError where there are none."""
        ...

    @property
    def highest(self) -> int:
        """The greatest of all replicas. Raises IndexError where there are none."""
        ...

    def level(self, replica: int) -> int:
        """Raises KeyError for a replica that has none."""
        ...

    def least(self, among: int) -> tuple[int, int]:
        """The least level of a set that is not empty, and the replicas of it that have it."""
        ...


class LoadLevels:
    """:class:`Levels` of Python's own tables.

    Levels that replicas have are kept sorted, each with the set of these. A change costs two
    searches in at most as many levels as there are replicas.
    """

    def __init__(self) -> None:
        self._levels: list[int] = []
        self._replicas: dict[int, int] = {}
        self._of: dict[int, int] = {}

    @property
    def lowest(self) -> int:
        return self._levels[0]

    @property
    def highest(self) -> int:
        return self._levels[-1]

    def level(self, replica: int) -> int:
        return self._of[replica]

    def put(self, replica: int, level: int) -> None:
        """Give a replica its level, known before or not."""
        old = self._of.get(replica)
        if old == level:
            return
        bit, replicas = 1 << replica, self._replicas
        if old is not None:
            self._take(bit, old)
        self._of[replica] = level
        there = replicas.get(level)
        if there is None:
            replicas[level] = bit
            insort(self._levels, level)
        else:
            replicas[level] = there | bit

    def drop(self, replica: int) -> None:
        """Forget a replica."""
        self._take(1 << replica, self._of.pop(replica))

    def least(self, among: int) -> tuple[int, int]:
        of = self._of
        if not among & among - 1:
            return of[among.bit_length() - 1], among
        if among.bit_count() <= _FEW:
            least, chosen = -1, 0
            for replica in bits(among):
                level = of[replica]
                if not chosen or level < least:
                    least, chosen = level, 1 << replica
                elif level == least:
                    chosen |= 1 << replica
            return least, chosen
        for level in self._levels:
            chosen = self._replicas[level] & among
            if chosen:
                return level, chosen
        raise KeyError("no replica of the set is known")

    def _take(self, bit: int, level: int) -> None:
        left = self._replicas[level] ^ bit
        if left:
            self._replicas[level] = left
        else:
            del self._replicas[level]
            del self._levels[bisect_left(self._levels, level)]
