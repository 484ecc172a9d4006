"""A clock for the times of blocks' uses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def _elapsed() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """Seconds since 1970, as the system's clock has them, but never going back.

    Where the system's clock is set back, this one goes on: otherwise what is used from then on
    would count as older than what was used before, and make room first, until the clock has come to
    where it was. Any thread.
    """

    def __init__(
        self, wall: Callable[[], float] = time.time, elapsed: Callable[[], float] = _elapsed
    ) -> None:
        """``wall``: the system's clock; ``elapsed``: seconds since any time, which nobody sets and
        which go on while the system sleeps."""
        self._wall = wall
        self._elapsed = elapsed
        self._mutex = threading.Lock()
        self._last, self._last_elapsed = wall(), elapsed()

    def __call__(self) -> float:
        with self._mutex:
            elapsed = self._elapsed()
            self._last = max(self._wall(), self._last + elapsed - self._last_elapsed)
            self._last_elapsed = elapsed
            return self._last
