"""Results with their names, and the loads that were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from penstock.bench.load.confidence import Interval, Repeated, least_samples
from penstock.bench.load.document import LoadedRun, LoadReport, over_repeats
from penstock.bench.load.load import Load
from penstock.bench.load.quality import Quality
from penstock.bench.load.record import RequestRecord
from penstock.bench.plots.words import number, with_half

Each = TypeVar("Each")


@dataclass(frozen=True)
class Estimate:
    """A figure of one load, with its interval where there is one."""

    value: float
    interval: Interval | None = None


def shown(estimate: Estimate, times: float = 1.0) -> str:
    """``times`` the figure, with half of the width of its interval."""
    interval = estimate.interval
    if interval is None:
        return number(estimate.value * times)
    return with_half(estimate.value * times, (interval.high - interval.low) / 2 * times)


@dataclass(frozen=True)
class Measured:
    """One load of one result, over its repeats."""

    name: str
    """The result's."""
    load: Load
    runs: Sequence[LoadedRun]

    @cached_property
    def answers(self) -> list[RequestRecord]:
        """The whole answers of all repeats."""
        return [record for run in self.runs for record in run.requests if record.ok]

    @cached_property
    def _over_repeats(self) -> dict[str, Repeated]:
        return over_repeats([run.whole for run in self.runs if not run.partial])

    def estimate(self, figure: str) -> Estimate | None:
        """A figure by its name: a rate such as ``output_tokens_per_s``, or ``ttft.p99``.

        Of several repeats it is their mean and Student's interval, and of one run its figure, with
        the interval that the run's own requests give, if they are enough; rates of one run have
        none.
        """
        over = self._over_repeats.get(figure)
        if over is not None:
            return Estimate(over.mean, Interval(over.low, over.high))
        whole = next((run.whole for run in self.runs if not run.partial), self.runs[0].whole)
        quantity, dot, part = figure.partition(".")
        if not dot:
            value = getattr(whole, figure)
            return None if value is None else Estimate(float(value))
        found = whole.distributions.get(quantity)
        if found is None:
            return None
        enough = found.summary.count >= least_samples(part)
        return Estimate(getattr(found.summary, part), getattr(found, part) if enough else None)


@dataclass(frozen=True)
class Result:
    """One document, under the name that reports and comparisons give it."""

    name: str
    report: LoadReport
    quality: Quality | None = None

    @cached_property
    def loads(self) -> list[Measured]:
        """The loads, in the order in which they were first measured; those of one search rise."""
        by_load: dict[Load, list[LoadedRun]] = {}
        for run in self.report.runs:
            by_load.setdefault(run.load, []).append(run)
        found = [Measured(self.name, load, runs) for load, runs in by_load.items()]
        return sorted(found, key=lambda each: _order(each.load))


def loads_of(results: Sequence[Result]) -> list[Load]:
    """Every load that a result has, the lightest first."""
    found = {measured.load: None for result in results for measured in result.loads}
    return sorted(found, key=_order)


def chosen(each_result: Sequence[Sequence[Measured]], most: int) -> list[Measured]:
    """Loads to be drawn apart from each other, about ``most`` of them: of every result's drawable
    ones as many, evenly from the lightest to the heaviest, and the heaviest where there is room for
    one."""
    each = max(1, most // max(1, sum(map(bool, each_result))))
    return [measured for loads in each_result for measured in evenly(loads, each)]


def left_out(each_result: Sequence[Sequence[Measured]], shown: Sequence[Measured]) -> str:
    """A sentence on the drawable loads that are not drawn; empty where all are."""
    left = sum(map(len, each_result)) - len(shown)
    return f" {left} further loads are left out, evenly." if left else ""


def evenly(each: Sequence[Each], most: int) -> list[Each]:
    """Take ``most`` of a sequence at most, evenly from the first to the last."""
    if len(each) <= most:
        return list(each)
    if most == 1:
        return [each[-1]]
    return [each[round(i * (len(each) - 1) / (most - 1))] for i in range(most)]


def _order(load: Load) -> tuple[float, int]:
    return load.rate or 0.0, load.concurrency or 0
