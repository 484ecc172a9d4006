"""How well the client itself keeps up: a benchmark whose client is late measures the client."""

from __future__ import annotations

import asyncio
import bisect
import resource
import selectors
import time
from typing import Final

import msgspec

_BOUNDS_S: Final = tuple(1e-5 * 1.15**i for i in range(110))  # to 48 s, in steps of 15 %


class ClientLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What the client's process did."""

    loop_lag_p50_s: float
    """How long chunks lay before they were stamped, at most: the time since the selector told of
    them, and of the round before if they may have come within it."""
    loop_lag_p99_s: float
    loop_lag_max_s: float
    cpu_s: float
    """Processor time, of which a run cannot have more than its seconds."""
    rss_bytes: int
    """The most memory that the process has had."""


class WatchedSelector(selectors.DefaultSelector):
    """A selector that notes how long the loop takes between two looks at its sockets.

    Whatever came while the loop was at work waited until its next look. So every socket of a look
    counts with the time from the last look to the end of the work on this one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counts = [0] * (len(_BOUNDS_S) + 1)
        self._max = 0.0
        self._before = self._returned = time.perf_counter()
        self._ready = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        called = time.perf_counter()
        if self._ready:
            lag = called - self._before
            self._counts[bisect.bisect_left(_BOUNDS_S, lag)] += self._ready
            self._max = max(self._max, lag)
        found = super().select(timeout)
        now = time.perf_counter()
        # A look that had to wait found what came right now; another what came since the last.
        self._before = now if now - called > _BOUNDS_S[0] * 2 else self._returned
        self._returned = now
        self._ready = len(found)
        return found

    def forget(self) -> None:
        """Begin anew."""
        self._counts = [0] * len(self._counts)
        self._max = 0.0

    def quantile(self, part: float) -> float:
        """The lag that ``part`` of all sockets did not exceed, within 15 %."""
        total, seen = sum(self._counts), 0
        for bound, count in zip((*_BOUNDS_S, self._max), self._counts, strict=True):
            seen += count
            if seen >= part * total:
                return min(bound, self._max)
        return self._max

    def load(self, cpu_s: float) -> ClientLoad:
        return ClientLoad(
            loop_lag_p50_s=self.quantile(0.5),
            loop_lag_p99_s=self.quantile(0.99),
            loop_lag_max_s=self._max,
            cpu_s=cpu_s,
            rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )


class WatchedLoop(asyncio.SelectorEventLoop):
    """An event loop whose lag is known."""

    def __init__(self) -> None:
        self.watched = WatchedSelector()
        super().__init__(self.watched)
