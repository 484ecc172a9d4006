"""Compares two documents, load by load and figure by figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from msgspec.structs import replace

from penstock.bench.load.compare.document import (
    VERSION,
    Change,
    ComparedPoint,
    Comparison,
)
from penstock.bench.load.compare.figures import (
    DEFAULT,
    Compared,
    flags,
    same_requests,
    slices,
    values_of,
)
from penstock.bench.load.compare.noise import (
    Effect,
    holm,
    of_repeats,
    of_requests,
    of_shares,
    of_slices,
    too_few,
)
from penstock.bench.load.document import LoadedRun
from penstock.bench.load.figures import samples_of
from penstock.bench.load.record import RequestRecord
from penstock.bench.load.result import Measured, Result
from penstock.bench.load.setups import differences
from penstock.errors import ConfigError
from penstock.service_level import Limit, level_of

LEVEL: Final = 0.05
_Levels = tuple[Sequence[Limit], Sequence[Limit]]
"""The service levels of both."""


def compare(
    a: Result,
    b: Result,
    figures: Sequence[Compared] = DEFAULT,
    threshold: float = 0.0,
    command: str = "",
) -> Comparison:
    """All figures of all loads that both have. Raises ConfigError where they share none."""
    ours = {measured.load: measured for measured in a.loads}
    theirs = {measured.load: measured for measured in b.loads}
    both = [load for load in ours if load in theirs]
    if not both:
        raise ConfigError(
            f"the results have no load in common: {a.name} has {_loads(a)}, and {b.name} "
            f"{_loads(b)}; measure one of them at the other's --rate or --concurrency"
        )
    levels = a.report.slo, b.report.slo
    points = [_point(ours[load], theirs[load], figures, levels) for load in both]
    points = _judged(points, threshold)
    changes = [change for point in points for change in point.changes]
    return Comparison(
        version=VERSION,
        benchmark="compare",
        command=command,
        a=a.name,
        b=b.name,
        differences=differences(a.report, b.report),
        points=points,
        only_a=[str(load) for load in ours if load not in theirs],
        only_b=[str(load) for load in theirs if load not in ours],
        level=LEVEL,
        threshold=threshold,
        compared=sum(change.p is not None for change in changes),
        better=sum(change.direction == "better" for change in changes),
        worse=sum(change.direction == "worse" for change in changes),
    )


def _loads(result: Result) -> str:
    return "; ".join(str(measured.load) for measured in result.loads)


def _point(a: Measured, b: Measured, figures: Sequence[Compared], levels: _Levels) -> ComparedPoint:
    sides = _Sides.of(a, b, levels)
    changes = [sides.change(figure) for figure in figures]
    return ComparedPoint(
        load=str(a.load),
        rate=a.load.rate,
        concurrency=a.load.concurrency,
        runs=(len(sides.a), len(sides.b)),
        answers=(_completed(sides.a), _completed(sides.b)),
        # What neither has, such as goodput without a service level, is not spoken of.
        changes=[each for each in changes if each.a is not None or each.b is not None],
    )


@dataclass(frozen=True)
class _Sides:
    """The runs of one load that are compared: all that were not stopped where both have several,
    else the first of each."""

    a: Sequence[LoadedRun]
    b: Sequence[LoadedRun]
    levels: _Levels

    @classmethod
    def of(cls, a: Measured, b: Measured, levels: _Levels) -> _Sides:
        ours, theirs = ([run for run in side.runs if not run.partial] for side in (a, b))
        if min(len(ours), len(theirs)) < 2:
            ours, theirs = ours[:1], theirs[:1]
        return cls(ours, theirs, levels)

    @property
    def repeated(self) -> bool:
        return len(self.a) > 1

    @cached_property
    def pairs(self) -> tuple[list[RequestRecord], list[RequestRecord]] | None:
        return same_requests(self.a[0], self.b[0])

    def change(self, figure: Compared) -> Change:
        ours, theirs = values_of(self.a, figure), values_of(self.b, figure)
        found = Change(
            figure=figure.name,
            better=figure.better,
            a=_mean(ours) if ours else None,
            b=_mean(theirs) if theirs else None,
            why="it is missing",
        )
        if not ours or not theirs:
            return found
        if figure.kind == "share":
            return self._share(figure, found, ours, theirs)
        if min(*ours, *theirs) <= 0:
            return replace(found, why="it is 0")
        ratio = _mean(theirs) / _mean(ours)
        found = replace(found, ratio=ratio)
        effect: Effect | None
        if len(ours) > 1 and len(theirs) > 1:
            effect = of_repeats(*([math.log(each) for each in side] for side in (ours, theirs)))
        elif figure.kind == "rate":
            effect = of_slices(slices(self.a[0]), slices(self.b[0]))
        else:
            first, second = (each[figure.quantity] for each in self._samples)
            for each in (first, second):
                if why := too_few(each, figure.part):
                    return replace(found, why=why)
            effect = of_requests(first, second, figure.part, self.pairs is not None)
        if effect is None:
            return replace(found, why="it is 0 in a part")
        if effect.method != "repeats":
            # Slices and resamples tell the error; of what, the whole run does.
            effect = effect.around(math.log(ratio))
        return replace(found, interval=effect.ratio, method=effect.method, p=effect.p, why="")

    @cached_property
    def _samples(self) -> tuple[dict[str, list[list[float]]], dict[str, list[list[float]]]]:
        """Samples by answer, of pairs where there are such, by quantity."""
        if self.pairs is not None:
            return samples_of(self.pairs[0]), samples_of(self.pairs[1])
        first, second = (
            samples_of([record for record in run.requests if record.ok])
            for run in (self.a[0], self.b[0])
        )
        return first, second

    def _share(
        self, figure: Compared, found: Change, ours: Sequence[float], theirs: Sequence[float]
    ) -> Change:
        mine, other = self.levels
        if figure.name == "good_share" and level_of(mine) != level_of(other):
            return replace(found, verdict="not comparable", why="the service levels differ")
        effect = of_shares(flags(self.a, figure, mine), flags(self.b, figure, other))
        if self.repeated and min(len(ours), len(theirs)) > 1:
            over = of_repeats(ours, theirs)
            # Runs that happen to agree are no reason to believe more than their counts do.
            effect = over if over.error > effect.error else effect
        return replace(
            found,
            difference=effect.difference,
            interval=effect.interval,
            method=effect.method,
            p=effect.p,
            why="",
        )


def _completed(runs: Sequence[LoadedRun]) -> int:
    return sum(run.whole.completed for run in runs)


def _judged(points: Sequence[ComparedPoint], threshold: float) -> list[ComparedPoint]:
    """The points with verdicts, which count how many figures there are."""
    chances = [c.p for point in points for c in point.changes if c.p is not None]
    adjusted = iter(holm(chances))
    return [
        replace(
            point,
            changes=[
                change if change.p is None else _verdict(change, next(adjusted), threshold)
                for change in point.changes
            ],
        )
        for point in points
    ]


def _verdict(change: Change, p_adjusted: float, threshold: float) -> Change:
    if p_adjusted >= LEVEL:
        return replace(change, p_adjusted=p_adjusted, verdict="within noise")
    found = replace(change, p_adjusted=p_adjusted, verdict="differs beyond noise")
    by = change.difference if change.ratio is None else change.ratio - 1
    assert by is not None
    if by == 0 or abs(by) < threshold:
        return found
    better = (by > 0) == (change.better == "more")
    return replace(found, direction="better" if better else "worse")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
