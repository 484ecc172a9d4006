"""How sure a figure is: intervals of confidence within a run, and over repeats of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.bench.stats import Summary, summarize
from penstock.bench.student import quantile

LEVEL: Final = 0.95
PARTS: Final = (0.5, 0.9, 0.99)
"""What percentiles have intervals."""
_RESAMPLES: Final = 200
_MOST: Final = 400_000
"""Samples beyond which every k-th is resampled: the interval changes little, and seconds pass."""


class Interval(msgspec.Struct, frozen=True):
    """Where the true value lies with 95 % confidence."""

    low: float
    high: float


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity over the requests of a run, or over the chunks of all of them."""

    summary: Summary
    mean: Interval
    p50: Interval
    p90: Interval
    p99: Interval


class Repeated(msgspec.Struct, frozen=True):
    """One figure of several runs that were alike: its mean, and Student's interval of that."""

    mean: float
    low: float
    high: float
    runs: int


def distribution(samples: Sequence[Sequence[float]], seed: int = 0) -> Distribution | None:
    """Summarize samples that came in groups, one group for each request.

    Intervals are of a bootstrap that draws requests, not samples (Davison & Hinkley, Bootstrap
    Methods and their Application, 1997, section 3.8): gaps of one request are alike, and taking
    them as independent would claim far too much. None if there is no sample.
    """
    summary = summarize([value for group in samples for value in group])
    if summary is None:
        return None
    tail = (1 - LEVEL) / 2 * 100
    low, high = np.percentile(resampled(samples, seed), [tail, 100 - tail], axis=0).tolist()
    of = [Interval(min(a, b), max(a, b)) for a, b in zip(low, high, strict=True)]
    return Distribution(summary=summary, mean=of[0], p50=of[1], p90=of[2], p99=of[3])


def least_samples(part: str) -> int:
    """How many samples tell ``p50``, ``p90`` or ``p99``: as many as have one on either side of it
    with a chance of 97.5 %, as its distribution-free interval needs; 6, 36 and 368. A mean is told
    by two."""
    if part == "mean":
        return 2
    inside = int(part[1:]) / 100
    return math.ceil(math.log((1 - LEVEL) / 2) / math.log(inside))


def resampled(
    samples: Sequence[Sequence[float]],
    seed: int = 0,
    block: int = 1,
    resamples: int = _RESAMPLES,
) -> NDArray[np.float64]:
    """Mean, p50, p90 and p99 of resamples: ``[resamples, 4]``. There must be a sample.

    Groups are drawn in runs of ``block`` neighbours, the first following the last (Politis and
    Romano, A circular block-resampling procedure for stationary data, 1992): what is near in time
    is alike. The same seed draws the same groups of as many.
    """
    generator = np.random.default_rng(seed)
    groups = len(samples)
    values = np.array([value for group in samples for value in group], np.float64)
    owner = np.repeat(np.arange(groups), [len(group) for group in samples])
    # A resample is a number of times for each group, so that sorting is done once.
    order = np.argsort(values, kind="stable")
    step = -(-len(order) // _MOST)
    order = order[step // 2 :: step]
    values, owner = values[order], owner[order]
    parts = np.array(PARTS)
    found = np.empty((resamples, 1 + len(parts)))
    block = min(block, groups)
    for row in range(resamples):
        while True:
            begun = np.bincount(generator.integers(0, groups, -(-groups // block)), None, groups)
            weights = _covered(begun, block)[owner]
            totals = np.cumsum(weights)
            if totals[-1]:  # no sample is in a resample of groups that have none
                break
        found[row, 0] = values @ weights / totals[-1]
        found[row, 1:] = values[np.searchsorted(totals, parts * totals[-1], side="left")]
    return found


def _covered(begun: NDArray[np.int64], block: int) -> NDArray[np.int64]:
    """How often each group is in blocks of which ``begun`` tells where they begin."""
    if block == 1:
        return begun
    sums = np.cumsum(np.concatenate([[0], begun[-(block - 1) :], begun]))
    counts: NDArray[np.int64] = sums[block:] - sums[:-block]
    return counts


def repeated(values: Sequence[float]) -> Repeated | None:
    """The mean over repeats and its interval; None if there is no value, or only one."""
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = quantile(LEVEL, len(values) - 1) * math.sqrt(variance / len(values))
    return Repeated(mean, mean - half, mean + half, len(values))
