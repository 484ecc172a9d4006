"""Suppressing repeated log lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

A_SECOND = 10
"""Most times that the same line is written within a second."""
MAX_LINES = 1000
"""Most distinct lines that are counted within a second; further ones are not."""


@dataclass(frozen=True)
class Line:
    """What identifies a line as a repetition: everything but its time."""

    logger: str
    level: int
    text: str
    error: str = ""


class Repeats:
    """Counts equal lines per second and says which to suppress. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._second = int(clock())
        self._counts: dict[Line, int] = {}
        self.waiting = False
        """Whether suppressed lines are waiting to be reported by ``over``."""

    def admits(self, line: Line) -> bool:
        """Whether to write ``line`` now. Call :meth:`over` first."""
        count = self._counts.get(line, 0)
        if count or len(self._counts) < MAX_LINES:
            self._counts[line] = count + 1
        if count >= A_SECOND:
            self.waiting = True
            return False
        return True

    def over(self, at_once: bool = False) -> Iterator[tuple[Line, int]]:
        """Return each line suppressed in a past second, and how often.

        ``at_once`` includes those of the present second.
        """
        second = int(self._clock())
        if second == self._second and not at_once:
            return
        counts, self._counts, self._second = self._counts, {}, second
        self.waiting = False
        for line, count in counts.items():
            if count > A_SECOND:
                yield line, count - A_SECOND
