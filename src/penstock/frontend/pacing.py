"""Decides when readers of growing outputs are woken: often enough for text to flow, no oftener."""

from __future__ import annotations

import asyncio
from typing import Protocol

SEQUENCE_S = 0.00075
"""Shortest pause, in seconds, for each open sequence. Waking a reader and writing its event takes a
server 20 to 30 us (benchmarks/server), and 75 where other work empties the caches: a tenth of one
core."""
LONGEST_PAUSE_S = 0.05
"""Longest pause, in seconds. Twenty events a second read as a steady flow, however many sequences
there are."""


class Woken(Protocol):
    """A growing output that somebody waits for."""

    def wake(self) -> None: ...


class Pacer:
    """Wakes all who have something to read at once, and then pauses in proportion to their number.

    With few sequences open, or with steps longer than the pause, each token is read alone. With
    many, tokens that come within one pause are read together: a step of a small model takes less
    time than to write an event for each of its tokens. Belongs to one event loop.
    """

    def __init__(self, longest_s: float = LONGEST_PAUSE_S) -> None:
        self.longest_s = longest_s
        """Upper bound of the pause, in seconds; 0 for no pauses."""
        self._grown: dict[Woken, None] = {}  # in order of growing
        self._open_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def grown(self, what: Woken) -> None:
        """Note that ``what`` has grown: it is woken by the next ``flush`` that finds the pause
        over."""
        self._grown[what] = None

    def flush(self, sequences: int) -> None:
        """Wake them now, or once the pause is over; ``sequences`` are open."""
        if not self._grown or self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() >= self._open_at:
            self._wake(loop, sequences)
        else:
            self._timer = loop.call_at(self._open_at, self._wake, loop, sequences)

    def _wake(self, loop: asyncio.AbstractEventLoop, sequences: int) -> None:
        self._timer = None
        grown, self._grown = self._grown, {}
        for what in grown:
            what.wake()
        self._open_at = loop.time() + min(SEQUENCE_S * sequences, self.longest_s)
