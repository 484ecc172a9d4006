"""How a load differs from the one that a profile was made for, in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from penstock.profile import Workload

RATIO: Final = 1.5
"""Rates and lengths that differ by less are the same: days differ as much."""
SHARED: Final = 0.15
"""The same for the part of prompts that an earlier one had: a difference."""
FEWEST: Final = 50
"""Requests below which nothing is said of a load."""


@dataclass(frozen=True)
class Drift:
    """One figure that is no longer what it was."""

    what: str
    made: float
    seen: float
    unit: str

    def __str__(self) -> str:
        if self.unit == "%":
            return f"{self.what}: {self.seen:.0%}, and the profile was made for {self.made:.0%}"
        times = "" if not self.made else f", {self.seen / self.made:.2g} times as much"
        return (
            f"{self.what}: {self.seen:,.4g} {self.unit}{times} as the profile was made for "
            f"({self.made:,.4g})"
        )


def drifts(made: Workload, seen: Workload) -> list[Drift]:
    """What differs between the load that a profile was made for and one that was seen."""
    return list(_drifts(made, seen))


def _drifts(made: Workload, seen: Workload) -> Iterator[Drift]:
    pairs = [
        ("prompts, median", made.input_tokens.p50, seen.input_tokens.p50, "tokens"),
        ("prompts, 90th percentile", made.input_tokens.p90, seen.input_tokens.p90, "tokens"),
        ("answers, median", made.output_tokens.p50, seen.output_tokens.p50, "tokens"),
        ("answers, 90th percentile", made.output_tokens.p90, seen.output_tokens.p90, "tokens"),
    ]
    if made.per_s is not None and seen.per_s is not None:
        pairs.insert(0, ("requests", made.per_s, seen.per_s, "a second"))
    for what, before, now, unit in pairs:
        low, high = sorted((before, now))
        if high > RATIO * low:
            yield Drift(what, before, now, unit)
    if abs(made.shared - seen.shared) > SHARED:
        yield Drift("prompt tokens that an earlier prompt had", made.shared, seen.shared, "%")
