"""What steps take, by how many token rows they compute, as measured while they run."""

from __future__ import annotations

import math
from bisect import bisect_left

_FINE = 32  # row counts up to here are told apart; beyond, eight to a doubling
_FIRST = 3
"""Measurements before one is believed, the least of them: the first finds caches cold, and any may
have been held up."""
_NEWEST_LESS, _NEWEST_MORE = 0.2, 0.1
"""Weight of the newest measurement, if it is less than what was known, and if it is more."""
_OUTLIER = 1.5
"""A step that took more than this many times what is usual counts as this many times: others may
have had the processor for most of it."""


class StepCosts:
    """Seconds by rows: exponentially weighted means, and lines between them.

    Where nothing was measured beyond some number of rows, more rows are believed to cost nothing
    more: so it is tried, and then it was measured. ``free``: no rows take no time.
    """

    def __init__(self, free: bool = False) -> None:
        self.most_rows = 0
        """Of what is known."""
        self._keys: list[int] = [0] if free else []  # buckets that are known, ascending
        self._seconds: dict[int, float] = {0: 0.0} if free else {}
        self._first: dict[int, list[float]] = {}  # of buckets that are not known yet
        self._measured_at: dict[int, int] = {}
        self._count = 0

    def add(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        bucket = _bucket(rows)
        self._count += 1
        self._measured_at[bucket] = self._count
        known = self._seconds.get(bucket)
        if known is not None:
            weight = _NEWEST_LESS if seconds < known else _NEWEST_MORE
            self._seconds[bucket] = known + (min(seconds, _OUTLIER * known) - known) * weight
            return
        first = self._first.setdefault(bucket, [])
        first.append(seconds)
        if len(first) == _FIRST:
            self._keys.insert(bisect_left(self._keys, bucket), bucket)
            self._seconds[bucket] = min(self._first.pop(bucket))
            self.most_rows = max(self.most_rows, rows)

    def seconds(self, rows: int) -> float:
        """Of a step of so many rows; 0 where nothing is known yet."""
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

    def knows(self, rows: int) -> bool:
        return _bucket(rows) in self._seconds

    def age(self, rows: int) -> int:
        """How many steps were measured since the last one of so many rows."""
        return self._count - self._measured_at.get(_bucket(rows), 0)


def _bucket(rows: int) -> int:
    if rows <= _FINE:
        return rows
    return _FINE + round(8 * math.log2(rows / _FINE))
