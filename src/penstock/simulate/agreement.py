"""How near the simulation of loads comes to what was measured, and how near measurements come to
each other: no prediction can be nearer than these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp, log
from statistics import fmean
from typing import Final

import msgspec

from penstock.simulate.recording import RecordedLoad
from penstock.simulate.server_loads import Seen
from penstock.simulate.setup import Setup

PARTS: Final = ("p50", "p99")
_TICK_S: Final = 1e-5
"""Times below this are as good as none."""


class Figure(msgspec.Struct, frozen=True):
    """A figure of a load, as it was measured and otherwise."""

    load: str
    name: str
    """Such as ``ttft.p50``."""
    measured: float
    """Seconds."""
    other: float
    """What was simulated, or measured another time."""

    @property
    def error(self) -> float:
        """``other`` over ``measured``, less 1."""
        return exp(_log_ratio(self.other, self.measured)) - 1


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """The relative errors of figures, in short."""

    mean: float
    """The mean of their absolute values."""
    signed: float
    """Their mean: above 0, predictions are too long."""
    worst: float
    """The largest absolute value."""
    where: str
    """The load and the figure of the worst."""

    @classmethod
    def of(cls, figures: Sequence[Figure]) -> Agreement | None:
        """None where there are no figures."""
        if not figures:
            return None
        errors = [each.error for each in figures]
        worst = max(figures, key=lambda each: abs(each.error))
        return cls(
            mean=fmean(map(abs, errors)),
            signed=fmean(errors),
            worst=abs(worst.error),
            where=f"{worst.name} of {worst.load}",
        )


def measured(loads: Sequence[RecordedLoad]) -> dict[str, Seen]:
    """What clients saw of the rounds of each load, together."""
    return _together((each.name, each.seen) for each in loads)


def simulated(loads: Sequence[RecordedLoad], setup: Setup) -> dict[str, Seen]:
    """What they would see of ``setup``."""
    return _together((each.name, each.load.simulated(setup)) for each in loads)


def figures(those: Mapping[str, Seen], others: Mapping[str, Seen]) -> Iterator[Figure]:
    """The medians and 99th percentiles of each load, of ``those`` beside ``others``."""
    for load, seen in those.items():
        if load not in others:
            continue
        told = others[load].summaries()
        for name, each in seen.summaries().items():
            for part in PARTS:
                if name in told:
                    values = getattr(each, part), getattr(told[name], part)
                    yield Figure(load, f"{name}.{part}", *values)


def _together(each: Iterator[tuple[str, Seen]]) -> dict[str, Seen]:
    found: dict[str, Seen] = {}
    for name, seen in each:
        found.setdefault(name, Seen()).join(seen)
    return found


def _log_ratio(other: float, measured: float) -> float:
    return log(max(other, _TICK_S) / max(measured, _TICK_S))
