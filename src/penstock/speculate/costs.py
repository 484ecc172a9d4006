"""What steps take, by how many token rows they compute, as measured while they run."""

from __future__ import annotations

import math
from bisect import bisect_left

_FINE = 32  # row counts up to here are told apart; beyond, eight to a doubling
_NEWEST = 0.1  # weight of the newest measurement
_OUTLIER = 4.0  # a step that took this many times what is usual counts as this many times


class StepCosts:
    """Seconds by rows: exponentially weighted means, and lines between them.

    Where nothing was measured beyond some number of rows, more rows are believed to cost nothing
    more: so it is tried, and then it was measured.
    """

    def __init__(self) -> None:
        self._keys: list[int] = []  # buckets that were measured, ascending
        self._seconds: dict[int, float] = {}
        self._measured_at: dict[int, int] = {}
        self._count = 0

    def add(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        bucket = _bucket(rows)
        self._count += 1
        self._measured_at[bucket] = self._count
        known = self._seconds.get(bucket)
        if known is None:
            self._keys.insert(bisect_left(self._keys, bucket), bucket)
            self._seconds[bucket] = seconds
            return
        self._seconds[bucket] = known + (min(seconds, _OUTLIER * known) - known) * _NEWEST

    def seconds(self, rows: int) -> float:
        """Of a step of so many rows; 0 where nothing was measured yet."""
        bucket, keys = _bucket(rows), self._keys
        known = self._seconds.get(bucket)
        if known is not None:
            return known
        if not keys:
            return 0.0
        at = bisect_left(keys, bucket)
        if at == 0:
            return self._seconds[keys[0]]
        if at == len(keys):
            return self._seconds[keys[-1]]
        below, above = keys[at - 1], keys[at]
        share = (bucket - below) / (above - below)
        low, high = self._seconds[below], self._seconds[above]
        return low + (high - low) * share

    def age(self, rows: int) -> int:
        """How many steps were measured since the last one of so many rows."""
        return self._count - self._measured_at.get(_bucket(rows), 0)


def _bucket(rows: int) -> int:
    if rows <= _FINE:
        return rows
    return _FINE + round(8 * math.log2(rows / _FINE))
