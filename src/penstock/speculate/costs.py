"""What steps take, by how many token rows they compute, as measured while they run."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort

_FINE = 32  # row counts up to here are told apart; beyond, eight to a doubling
_FIRST = 3
"""Measurements before one is believed, the middle one of them: the first finds caches cold, and any
may have been held up."""
_NEWEST = 0.05
"""Weight of the newest measurement, once there are so many that it has no more in their mean."""
_RENEWED = 0.25
"""Its weight where older ones may no longer be true: six are then worth more than all before."""
_OUTLIER = 1.5
"""A step that took more than this many times what is usual counts as this many times: others may
have had the processor for most of it."""
_SHARE = 0.1
"""Of a step of the only number of rows that is known, what is believed to grow with its rows."""
_APART = 0.7
"""Slopes are taken over so wide a range at least: of neighbours, they would be noise."""
_WIDE = 4
"""Numbers of rows this many times apart are too far to tell what lies between them."""
_NEAR = 1.125


class StepCosts:
    """Seconds by rows: exponentially weighted means, lines between them, and the last one beyond.

    ``free``: no rows take no time.
    """

    def __init__(self, free: bool = False) -> None:
        self.most_rows = 0
        """Of what is known."""
        self._keys: list[int] = [0] if free else []  # buckets that are known, ascending
        self._seconds: dict[int, float] = {0: 0.0} if free else {}
        self._first: dict[int, list[float]] = {}  # of buckets that are not known yet
        self._weights: dict[int, float] = {}  # of the last measurement

    def add(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        bucket = _bucket(rows)
        known = self._seconds.get(bucket)
        if known is not None:
            weight = self._weights[bucket]
            weight = self._weights[bucket] = max(weight / (1.0 + weight), _NEWEST)
            self._seconds[bucket] = known + (min(seconds, _OUTLIER * known) - known) * weight
            return
        first = self._first.setdefault(bucket, [])
        first.append(seconds)
        if len(first) == _FIRST:
            insort(self._keys, bucket)
            self._seconds[bucket] = sorted(self._first.pop(bucket))[_FIRST // 2]
            self._weights[bucket] = 1.0 / _FIRST
            self.most_rows = max(self.most_rows, rows)

    def renew(self, rows: int) -> None:
        """What is measured next of so many rows counts more than what was measured long ago."""
        bucket = _bucket(rows)
        if bucket in self._weights:
            self._weights[bucket] = max(self._weights[bucket], _RENEWED)

    def renew_all(self) -> None:
        """The same of all numbers of rows."""
        for bucket, weight in self._weights.items():
            self._weights[bucket] = max(weight, _RENEWED)

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
            return self._beyond(rows)
        below, above = keys[at - 1], keys[at]
        share = (rows - _rows(below)) / (_rows(above) - _rows(below))
        low, high = self._seconds[below], self._seconds[above]
        return low + (high - low) * min(max(share, 0.0), 1.0)

    def knows(self, rows: int) -> bool:
        """Whether steps of so many rows were measured, or of a few more and a few less."""
        bucket, keys = _bucket(rows), self._keys
        if bucket in self._seconds:
            return True
        at = bisect_left(keys, bucket)
        below = _rows(keys[at - 1]) if at else 0.0
        above = _rows(keys[at]) if at < len(keys) else math.inf
        return above <= below * _WIDE or rows <= below * _NEAR or above <= rows * _NEAR

    def _beyond(self, rows: int) -> float:
        last = self._keys[-1]
        most, seconds = _rows(last), self._seconds[last]
        at = bisect_right(self._keys, _bucket(int(most * _APART))) - 1
        first = self._keys[max(at, 0)]
        if first == last:
            slope = seconds * _SHARE / most if most else 0.0
        else:
            slope = max((seconds - self._seconds[first]) / (most - _rows(first)), 0.0)
        return seconds + slope * (rows - most)


def _bucket(rows: int) -> int:
    if rows <= _FINE:
        return rows
    return _FINE + round(8 * math.log2(rows / _FINE))


def _rows(bucket: int) -> float:
    """In the middle of a bucket."""
    return bucket if bucket <= _FINE else _FINE * 2 ** ((bucket - _FINE) / 8)
