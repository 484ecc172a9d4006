"""Lines of the log that come again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

A_SECOND = 10
"""How often the same line may be told within a second."""
MAX_LINES = 1000
"""Different lines that are told apart within a second; further ones are not counted."""


@dataclass(frozen=True)
class Line:
    """What makes a line the same as another: all but its time."""

    logger: str
    level: int
    text: str
    error: str = ""


class Repeats:
    """Counts equal lines by the second, and tells which are too many. Not for several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._second = int(clock())
        self._counts: dict[Line, int] = {}
        self.waiting = False
        """Whether some line was left out that ``over`` has not told."""

    def admits(self, line: Line) -> bool:
        """Whether to write ``line`` now. :meth:`over` is to be asked before."""
        count = self._counts.get(line, 0)
        if count or len(self._counts) < MAX_LINES:
            self._counts[line] = count + 1
        if count >= A_SECOND:
            self.waiting = True
            return False
        return True

    def over(self, at_once: bool = False) -> Iterator[tuple[Line, int]]:
        """Each line of a second that has passed, and how often it was left out.

        ``at_once`` tells those of the present second too.
        """
        second = int(self._clock())
        if second == self._second and not at_once:
            return
        counts, self._counts, self._second = self._counts, {}, second
        self.waiting = False
        for line, count in counts.items():
            if count > A_SECOND:
                yield line, count - A_SECOND
