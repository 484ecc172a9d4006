"""Very many durations, kept as whole microseconds and how often each came."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.bench.stats import Summary

_BUFFERED: Final = 1 << 20
_PARTS: Final = (50.0, 90.0, 95.0, 99.0)


class Gaps:
    """Durations of which a day of traffic has a hundred million: exact to the microsecond, in which
    the records of ``bench serve`` are, too, in the room of the different ones."""

    def __init__(self) -> None:
        self._values = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)
        self._single: list[int] = []
        self._many: list[NDArray[np.int64]] = []
        self._weights: list[int | NDArray[np.int64]] = []
        self._buffered = 0

    def add(self, seconds: float) -> None:
        """Add one."""
        self._single.append(round(seconds * 1e6))
        self._buffered += 1
        if self._buffered > _BUFFERED:
            self._merge()

    def add_each(self, seconds: NDArray[np.float64], times: int) -> None:
        """Add all of ``seconds``, each so many ``times``."""
        if not len(seconds):
            return
        self._many.append(np.rint(seconds * 1e6).astype(np.int64))
        self._weights.append(times)
        self._buffered += len(seconds)
        if self._buffered > _BUFFERED:
            self._merge()

    def join(self, other: Gaps) -> None:
        """Add all that another has."""
        other._merge()
        self._many.append(other._values)
        self._weights.append(other._counts)
        self._merge()

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
    def _percentile(values: NDArray[np.float64], ends: NDArray[np.int64], part: float) -> float:
        at = part / 100 * (int(ends[-1]) - 1)
        low = int(at)
        first = values[np.searchsorted(ends, low, side="right")]
        second = values[np.searchsorted(ends, min(low + 1, int(ends[-1]) - 1), side="right")]
        return float(first + (second - first) * (at - low))

    def _merge(self) -> None:
        if not self._buffered and not self._many:
            return
        values = np.concatenate(
            [self._values, np.array(self._single, np.int64), *self._many], dtype=np.int64
        )
        counts = np.concatenate(
            [
                self._counts,
                np.ones(len(self._single), np.int64),
                *(
                    np.broadcast_to(np.asarray(weight, np.int64), len(each))
                    for each, weight in zip(self._many, self._weights, strict=True)
                ),
            ]
        )
        self._values, places = np.unique(values, return_inverse=True)
        self._counts = np.bincount(places, weights=counts).astype(np.int64)
        self._single, self._many, self._weights, self._buffered = [], [], [], 0
