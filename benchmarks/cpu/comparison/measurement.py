"""Turns the times of tokens into figures, the same way for every engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from comparison.cases import Metric

Times = Sequence[Sequence[float]]
"""``times[i][j]``: seconds from the offer to token ``j`` of request ``i``."""


def figures(times: Times) -> dict[Metric, float]:
    """Every metric that the times allow.

    Decoding is what comes after the last request's first token: until then some step was still
    reading prompts. Its rate is left out where nothing is decoded. Time to first token is the
    mean over the requests.
    """
    if not times or not all(times):
        raise ValueError("every request must have at least one token")
    end = max(row[-1] for row in times)
    if end <= 0:
        raise ValueError("tokens cannot come before they are asked for")
    found = {
        Metric.OUTPUT: sum(len(row) for row in times) / end,
        Metric.TTFT: fmean(row[0] for row in times),
    }
    begun = max(row[0] for row in times)
    decoded = sum(1 for row in times for at in row if at > begun)
    if decoded:
        found[Metric.DECODE] = decoded / (end - begun)
    return found


@dataclass(frozen=True)
class Summary:
    """One figure, or ratio, over the rounds."""

    median: float
    lowest: float
    highest: float
    rounds: int

    @property
    def is_figure(self) -> bool:
        """Whether it stands for anything: a single round may be its neighbours' noise alone."""
        return self.rounds > 1


def summarize(samples: Sequence[float]) -> Summary:
    """Raises ValueError for no samples."""
    if not samples:
        raise ValueError("there is nothing to summarize")
    return Summary(median(samples), min(samples), max(samples), len(samples))


def advantage(metric: Metric, ours: float, theirs: float) -> float:
    """How many times better ``ours`` is: above 1 is better, whichever way the metric points."""
    return ours / theirs if metric.higher_is_better else theirs / ours


def best_peer(metric: Metric, values: Mapping[str, float]) -> str | None:
    """Whose value is best; None where there is none."""
    if not values:
        return None
    pick = max if metric.higher_is_better else min
    return pick(values, key=values.__getitem__)
