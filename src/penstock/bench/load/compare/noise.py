"""How much two figures differ, and how much of that may be noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from penstock.bench.load.compare.document import Method
from penstock.bench.load.confidence import LEVEL, Interval, least_samples, resampled
from penstock.bench.student import quantile, two_sided

_RESAMPLES: Final = 400
_LEAST: Final = 8
"""Answers below which one run of each says nothing of noise."""
_PARTS: Final = {"mean": 0, "p50": 1, "p90": 2, "p99": 3}
_BEYOND: Final = {"mean": 1.0, "p50": 0.5, "p90": 0.1, "p99": 0.01}
"""The part of all samples that a figure is told by."""


@dataclass(frozen=True)
class Effect:
    """A difference, with its standard error and its degrees of freedom."""

    method: Method
    difference: float
    error: float
    freedom: float

    def around(self, difference: float) -> Effect:
        """The same error of another difference."""
        return replace(self, difference=difference)

    @property
    def p(self) -> float:
        """The chance of so much if nothing differed."""
        if self.error == 0:
            return 1.0 if self.difference == 0 else 0.0
        return two_sided(abs(self.difference) / self.error, self.freedom)

    @property
    def interval(self) -> Interval:
        half = quantile(LEVEL, self.freedom) * self.error
        return Interval(self.difference - half, self.difference + half)

    @property
    def ratio(self) -> Interval:
        """The interval of a ratio, where the difference is one of logarithms."""
        # Beyond a factor of e^30 nothing is known, and exp() may overflow.
        ends = (max(-30.0, min(30.0, end)) for end in (self.interval.low, self.interval.high))
        return Interval(*(math.exp(end) for end in ends))


def of_repeats(a: Sequence[float], b: Sequence[float]) -> Effect:
    """The difference of two means, at least two values each, by Welch (The generalization of
    Student's problem when several different population variances are involved, 1947)."""
    parts = [float(np.var(values, ddof=1)) / len(values) for values in (a, b)]
    total = sum(parts)
    freedom = 1.0
    if total > 0:
        below = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (a, b), strict=True))
        freedom = total**2 / below
    difference = float(np.mean(b)) - float(np.mean(a))
    return Effect("repeats", difference, math.sqrt(total), freedom)


def too_few(samples: Sequence[Sequence[float]], part: str) -> str:
    """Why so few samples, in groups by answer, do not tell a part; empty where they do."""
    answers, total = sum(map(bool, samples)), sum(map(len, samples))
    if answers < _LEAST:
        return f"{answers} answers; it needs {_LEAST}, or repeats"
    if total < least_samples(part):
        what = "answers" if total == answers else f"samples of {answers} answers"
        return f"{total} {what}; {part} needs {least_samples(part)}, or repeats"
    return ""


def of_requests(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], part: str, paired: bool
) -> Effect | None:
    """The difference of logarithms of a part, of samples by request, in their order.

    ``paired`` requests are the same in both, one by one: then what differs between requests is in
    both alike, and is no noise. A block bootstrap keeps neighbours together, since they met the
    same queue. None where a figure is 0.
    """
    place = _PARTS[part]
    drawn = [
        resampled(samples, seed, _block(len(samples)), _RESAMPLES)[:, place]
        for samples, seed in ((a, 0), (b, 0 if paired else 1))
    ]
    if min(each.min() for each in drawn) <= 0:
        return None
    differences = np.log(drawn[1]) - np.log(drawn[0])
    # The error is itself of few blocks, and of a tail only what lies beyond it tells.
    freedom = min(_freedom(samples, part) for samples in (a, b))
    method: Method = "pairs" if paired else "requests"
    return Effect(method, float(np.mean(differences)), float(np.std(differences, ddof=1)), freedom)


def of_slices(a: Sequence[float], b: Sequence[float]) -> Effect | None:
    """The difference of logarithms of two rates, by the rates of equal slices of each run (the
    method of batch means); None where nothing came."""
    errors, rates = [], []
    for slices in (a, b):
        mean = float(np.mean(slices))
        if mean <= 0:
            return None
        rates.append(math.log(mean))
        errors.append(float(np.std(slices, ddof=1)) / math.sqrt(len(slices)) / mean)
    freedom = min(len(a), len(b)) - 1
    return Effect("requests", rates[1] - rates[0], math.hypot(*errors), freedom)


def of_shares(a: Sequence[bool], b: Sequence[bool]) -> Effect:
    """The difference of two shares of requests, told one by one in their order.

    Each error is the larger of two: of independent requests, with one added to each kind (Agresti
    and Caffo, Simple and effective confidence intervals for proportions and differences of
    proportions, 2000), and of a block bootstrap, as failures come together.
    """
    shares, errors = [], []
    for seed, flags in enumerate((a, b)):
        count, total = sum(flags), len(flags)
        moved = (count + 1) / (total + 2)
        alone = math.sqrt(moved * (1 - moved) / (total + 2))
        drawn = resampled([[float(flag)] for flag in flags], seed, _block(total), _RESAMPLES)
        shares.append(count / total)
        errors.append(max(alone, float(np.std(drawn[:, 0], ddof=1))))
    freedom = max(1.0, min(_blocks(len(a)), _blocks(len(b))) - 1)
    return Effect("requests", shares[1] - shares[0], math.hypot(*errors), freedom)


def _blocks(count: int) -> int:
    """How many blocks so many answers make."""
    return max(1, count // _block(count))


def _block(count: int) -> int:
    """Neighbours that stay together: their number grows as the cube root, which is best for
    variances (Kuensch, The jackknife and the bootstrap for general stationary observations,
    1989)."""
    return math.ceil(math.cbrt(count))


def _freedom(samples: Sequence[Sequence[float]], part: str) -> float:
    beyond = 2 * _BEYOND[part] * sum(map(len, samples))
    return max(1.0, min(float(_blocks(len(samples))), beyond) - 1)


def holm(chances: Sequence[float]) -> list[float]:
    """Chances adjusted for their number (Holm, A simple sequentially rejective multiple test
    procedure, 1979): what is below a level then holds for all together."""
    adjusted = [1.0] * len(chances)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(chances)), key=lambda i: chances[i])):
        highest = max(highest, min(1.0, chances[place] * (len(chances) - rank)))
        adjusted[place] = highest
    return adjusted
