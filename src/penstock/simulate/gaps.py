"""Very many durations, kept as whole microseconds and how often each came."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.bench.stats import Summary

Whole = NDArray[np.int64]

_BUFFERED: Final = 1 << 20
_PARTS: Final = (50.0, 90.0, 95.0, 99.0)


class Gaps:
    """Durations of which a day of traffic has a hundred million: exact to the microsecond, in which
    the records of ``bench serve`` are, too, in the room of the different ones."""

    def __init__(self) -> None:
        self._values = np.empty(0, np.int64)  # microseconds, ascending
        self._counts = np.empty(0, np.int64)
        self._single: list[float] = []  # seconds
        self._several: list[float] = []
        self._weights: list[tuple[int, int]] = []  # of so many of these the times of each

    def add(self, seconds: float) -> None:
        """Add one."""
        self._single.append(seconds)
        if len(self._single) > _BUFFERED:
            self._merge()

    def add_each(self, seconds: list[float], times: int) -> None:
        """Add all of ``seconds``, each so many ``times``."""
        self._several += seconds
        self._weights.append((len(seconds), times))
        if len(self._several) > _BUFFERED:
            self._merge()

    def join(self, other: Gaps) -> None:
        """Add all that another has."""
        other._merge()
        self._merge(other._values, other._counts)

    @property
    def count(self) -> int:
        self._merge()
        return int(self._counts.sum())

    def summary(self) -> Summary | None:
        """Summarize them, percentiles interpolated as in all figures; None if there are none."""
        self._merge()
        if not len(self._values):
            return None
        values, ends = self._values / 1e6, np.cumsum(self._counts)
        total = int(ends[-1])
        p50, p90, p95, p99 = (self._percentile(values, ends, part) for part in _PARTS)
        return Summary(
            count=total,
            mean=float(values @ self._counts) / total,
            min=float(values[0]),
            p50=p50,
            p90=p90,
            p95=p95,
            p99=p99,
            max=float(values[-1]),
        )

    @staticmethod
    def _percentile(values: NDArray[np.float64], ends: Whole, part: float) -> float:
        at = part / 100 * (int(ends[-1]) - 1)
        low = int(at)
        first = values[np.searchsorted(ends, low, side="right")]
        second = values[np.searchsorted(ends, min(low + 1, int(ends[-1]) - 1), side="right")]
        return float(first + (second - first) * (at - low))

    def _merge(self, values: Whole | None = None, counts: Whole | None = None) -> None:
        """Sort in what was added, and other values with their counts."""
        single, several = _microseconds(self._single), _microseconds(self._several)
        ones = np.ones(len(single), np.int64)
        if values is None or counts is None:
            values = counts = np.empty(0, np.int64)
        joined = np.concatenate([self._values, single, several, values])
        runs = np.array(self._weights, np.int64).reshape(-1, 2)
        times = np.repeat(runs[:, 1], runs[:, 0])
        weights = np.concatenate([self._counts, ones, times, counts])
        self._single, self._several, self._weights = [], [], []
        self._values, places = np.unique(joined, return_inverse=True)
        self._counts = np.bincount(places, weights=weights, minlength=0).astype(np.int64)


def _microseconds(seconds: list[float]) -> Whole:
    return np.rint(np.array(seconds, np.float64) * 1e6).astype(np.int64)
