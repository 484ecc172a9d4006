"""The search for the highest load that a server carries within its service level."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import msgspec

_GROW: Final = 2.0


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Where the search ended."""

    highest_good: float | None
    """The highest rate that was within the level; None if none was."""
    lowest_bad: float | None
    """The lowest that was not; None if all were."""
    good_share: float
    """What part of the requests had to be within all limits."""


@dataclass
class RateSearch:
    """Doubles a rate until it fails, or halves it until it holds, and then cuts what is between by
    the geometric mean, until both ends are within ``precision``.

    It believes every answer: near the edge a run may hold by chance, so the result is known to the
    precision of its runs at best.
    """

    start: float
    precision: float = 0.05
    most_runs: int = 16
    most_halvings: int = 6
    """After so many without a rate that holds, none is taken to."""
    good: float | None = field(default=None, init=False)
    bad: float | None = field(default=None, init=False)
    runs: int = field(default=0, init=False)

    @property
    def next(self) -> float | None:
        """The rate to try; None at the end."""
        if self.runs >= self.most_runs:
            return None
        if self.good is None and self.bad is None:
            return self.start
        if self.good is None:
            assert self.bad is not None
            return self.bad / _GROW if self.runs <= self.most_halvings else None
        if self.bad is None:
            return self.good * _GROW
        if self.bad / self.good <= 1 + self.precision:
            return None
        return float((self.good * self.bad) ** 0.5)

    def tell(self, rate: float, held: bool) -> None:
        """Take note of how a run at a rate ended."""
        self.runs += 1
        if held:
            self.good = rate if self.good is None else max(self.good, rate)
        else:
            self.bad = rate if self.bad is None else min(self.bad, rate)

    def found(self, good_share: float) -> Found:
        return Found(highest_good=self.good, lowest_bad=self.bad, good_share=good_share)
