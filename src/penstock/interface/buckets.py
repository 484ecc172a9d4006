"""Histograms that are cheap to add to: one bisection and two additions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec


class Buckets(msgspec.Struct):
    """How many values fell into which interval. Not thread-safe."""

    bounds: tuple[float, ...]
    """Ascending upper bounds, each inclusive; above the last there is one interval more."""
    counts: list[int]  # len(bounds) + 1
    total: float = 0.0  # sum of all values

    @classmethod
    def empty(cls, bounds: Sequence[float]) -> Buckets:
        return cls(tuple(bounds), [0] * (len(bounds) + 1))

    def add(self, value: float, times: int = 1) -> None:
        """Count ``value``, ``times`` times over."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def plus(self, other: Buckets) -> Buckets:
        """Both counted together; of the same bounds."""
        assert self.bounds == other.bounds
        counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        return Buckets(self.bounds, counts, self.total + other.total)

    @property
    def count(self) -> int:
        return sum(self.counts)
