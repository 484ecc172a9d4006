"""How much two figures differ, and how much of that may be noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.bench.load.compare.document import Method
from penstock.bench.load.confidence import LEVEL, Interval, least_samples, resampled
from penstock.bench.student import quantile, two_sided

Floats = NDArray[np.float64]
_RESAMPLES: Final = 400
_FEWER: Final = 100
_MANY: Final = 10_000
"""Answers from which fewer resamples do: seconds pass, and what is found is clear enough."""
_LEAST: Final = 8
"""Answers below which one run of each says nothing of noise."""
_FAR: Final = 2.81
"""Deviations to either side that hold 99.5 %: about what adjusted chances ask of ten figures."""
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
    same queue: more of them where they are alike for longer. None where a figure is 0.
    """
    if paired:
        block = block_length(_ratios(a, b))
        lengths = [block, block]
    else:
        lengths = [block_length(_means(samples)) for samples in (a, b)]
    place = _PARTS[part]
    drawn = [
        resampled(samples, seed, block, _resamples(a, b))[:, place]
        for samples, seed, block in ((a, 0, lengths[0]), (b, 0 if paired else 1, lengths[1]))
    ]
    if min(each.min() for each in drawn) <= 0:
        return None
    differences = np.log(drawn[1]) - np.log(drawn[0])
    # The error is itself of few blocks, and of a tail only what lies beyond it tells.
    freedom = min(
        min(len(samples) // block, 2 * _BEYOND[part] * sum(map(len, samples))) - 1
        for samples, block in zip((a, b), lengths, strict=True)
    )
    method: Method = "pairs" if paired else "requests"
    error = float(np.std(differences, ddof=1))
    if not paired:
        wide = [_order_error(s, part, block) for s, block in zip((a, b), lengths, strict=True)]
        error = max(error, math.hypot(*wide))
    return Effect(method, float(np.mean(differences)), error, max(1.0, freedom))


def _order_error(samples: Sequence[Sequence[float]], part: str, block: int) -> float:
    """The error of a percentile's logarithm by order statistics far to both sides of it (Price and
    Bonett, Distribution-free confidence intervals for difference and ratio of medians, 2002).

    Requests of few lengths have times in clusters. A percentile between two of these jumps, which
    resamples show seldom, and a distribution-free interval does. 0 where there is no percentile, or
    answers have several samples.
    """
    if part == "mean" or max(map(len, samples)) > 1:
        return 0.0
    values = np.sort([value for group in samples for value in group])
    count, inside = len(values), 1 - _BEYOND[part]
    stretch = max(1.0, block / math.cbrt(count))
    reach = _FAR * math.sqrt(count * inside * (1 - inside) * stretch)
    low, high = (min(count - 1, max(0, round(count * inside + at))) for at in (-reach, reach))
    return float(np.log(values[high] / values[low])) / (2 * _FAR)


def _resamples(*sides: Sequence[Sequence[float]]) -> int:
    return _FEWER if max(map(len, sides)) >= _MANY else _RESAMPLES


def _means(samples: Sequence[Sequence[float]]) -> Floats:
    return np.array([sum(group) / len(group) for group in samples if group])


def _ratios(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> Floats:
    """Logarithms of the ratios of pairs that both have something above 0."""
    sums = [(sum(x) / len(x), sum(y) / len(y)) for x, y in zip(a, b, strict=True) if x and y]
    return np.array([math.log(y / x) for x, y in sums if x > 0 and y > 0])


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
    shares, errors, freedom = [], [], math.inf
    for seed, flags in enumerate((a, b)):
        count, total = sum(flags), len(flags)
        moved = (count + 1) / (total + 2)
        alone = math.sqrt(moved * (1 - moved) / (total + 2))
        block = block_length(np.array(flags, np.float64))
        groups = [[float(flag)] for flag in flags]
        drawn = resampled(groups, seed, block, _resamples(groups))
        shares.append(count / total)
        errors.append(max(alone, float(np.std(drawn[:, 0], ddof=1))))
        freedom = min(freedom, total // block - 1)
    return Effect("requests", shares[1] - shares[0], math.hypot(*errors), max(1.0, freedom))


def block_length(series: Floats) -> int:
    """How many neighbours of a series stay together: n^(1/3) of independent ones, and more by how
    long they are alike, tau^(2/3), but a quarter of them at most.

    Tau is 1 and twice the sum of the autocorrelations until they first are within noise; for an
    autoregressive series this is near the length that is best for variances (Politis and White,
    Automatic block-length selection for the dependent bootstrap, 2004).
    """
    count = len(series)
    away = series - series.mean() if count else series
    spread = float(away @ away)
    alike = 1.0
    for lag in range(1, count // 4 + 1 if spread > 0 else 0):
        correlation = float(away[:-lag] @ away[lag:]) / spread
        if correlation < 2 / math.sqrt(count):
            break
        alike += 2 * correlation
    return max(1, min(count // 4, math.ceil(math.cbrt(count * alike * alike))))


def holm(chances: Sequence[float]) -> list[float]:
    """Chances adjusted for their number (Holm, A simple sequentially rejective multiple test
    procedure, 1979): what is below a level then holds for all together."""
    adjusted = [1.0] * len(chances)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(chances)), key=lambda i: chances[i])):
        highest = max(highest, min(1.0, chances[place] * (len(chances) - rank)))
        adjusted[place] = highest
    return adjusted
