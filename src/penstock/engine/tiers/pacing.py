"""How much is moved between two steps, so that sequences that run hardly notice.

What is read for a sequence and put into the cache takes time of the cores that compute others'
steps: on the machine of docs/kv-tiers.md some 50 ms for 267 MB. If all of that came between two
steps of 50 ms, others would wait twice as long for a token. So a step *earns* a share of its time,
which reading and putting *spend*. The sequence whose blocks come waits longer than it had to, but
briefly beside the time of computing them. Once it has waited for a part of that
(``ReadingCosts.calm_s``), the share grows, so that it comes to an end.
"""

from __future__ import annotations

from typing import Final

from penstock.engine.handover.rule import Measured

SHARE: Final = 0.03
"""The part of steps' time that blocks may take while sequences run: steps are to become less than
5 % longer, and not all that reading costs is seen by the thread that reads. With 0.04 they became
5.4 and 5.6 % longer in the means of 12 and 14 readings of 138 MB (standard error 4 %)."""
FIRST_READING: Final = 5e9
"""Bytes that a second of a core reads, to assume before any have come."""


class Pace:
    """Time that may be spent on blocks, in seconds by which steps come later."""

    def __init__(self) -> None:
        self._left = 0.0
        self._reading = Measured(FIRST_READING)

    @property
    def may_go(self) -> bool:
        """Whether there is time left. What is begun then is done, whatever it takes, and later
        steps earn it."""
        return self._left > 0

    def earn(self, seconds: float, haste: float = 1.0) -> None:
        """A step took so long, of which ``haste`` times :data:`SHARE` may be spent, or all of it
        where that is less. What the step before has earned and nobody spent is lost."""
        self._left = min(self._left, 0.0) + min(SHARE * haste, 1.0) * seconds

    def spend(self, seconds: float) -> None:
        """The next step begins so much later."""
        self._left -= seconds

    def ask(self, size: int) -> None:
        """So many bytes will be read beside a step, by a core that takes part in it: all others
        wait for that one."""
        self._left -= size / self._reading.value

    def has_read(self, size: int, busy_s: float) -> None:
        """So many bytes took so many seconds of a core."""
        self._reading.add(size, busy_s)
