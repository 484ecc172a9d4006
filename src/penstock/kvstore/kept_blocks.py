"""Until when blocks are kept that somebody has asked for."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from penstock.kvstore.blocks import Name

MOST_KEPT_S: Final = 86_400.0
"""Longest time for which blocks are kept at once."""
_STALE: Final = 64


class KeptBlocks:
    """Times until which blocks are kept, whether they are there or come later; at most so many, so
    that there are always others that make room. Knows no clock. Not thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._until: dict[Name, float] = {}
        self._ends: list[tuple[float, Name]] = []
        """A heap of the times; those that were extended are there with their former times, too."""

    def __len__(self) -> int:
        return len(self._until)

    def until(self, name: Name) -> float:
        """0 for a block that nobody has asked for."""
        return self._until.get(name, 0.0)

    def add(self, name: Name, until: float, now: float) -> bool:
        """Keep a block until a time, or longer if that was asked for before; returns False, and
        does not, where there are too many.

        A refusal costs as little as anything else: where the share is taken, every block of every
        prompt that is to be kept is refused, under a lock that the engine's thread waits for.
        """
        self._forget_ended(now)
        before = self._until.get(name)
        if before is None and len(self._until) >= self._most:
            return False
        if before is None or before < until:
            self._until[name] = until
            heapq.heappush(self._ends, (until, name))
            if len(self._ends) > 2 * len(self._until) + _STALE:
                self._ends = sorted((until, name) for name, until in self._until.items())
        return True

    def heeded(
        self, names: Sequence[Name | None], seconds: Sequence[float], now: float
    ) -> list[float]:
        """The times of the last uses of blocks of which others have noted these seconds, of a chain
        the tail first; None: nobody knows which block it is.

        A second to come is the one until which a block is kept: it is kept here as well, as far as
        there are not too many, of a chain the head first. Or it is of a clock that was set back.
        """
        times = [min(second, now) for second in seconds]
        for i in reversed(range(len(times))):
            name, second = names[i], seconds[i]
            if name is None or not now < second <= now + MOST_KEPT_S:
                continue
            if self.add(name, second, now):
                times[i] = second
        return times

    def _forget_ended(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            until, name = heapq.heappop(self._ends)
            if self._until.get(name) == until:
                del self._until[name]
