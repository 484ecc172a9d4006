"""Weights that tell how many of them have been read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from penstock.interface.plan_weights import PlanWeight
from penstock.interface.weights import RowSource, WeightSource, WeightValue


class CountedWeights:
    """A WeightSource that gives what ``source`` does, and calls ``tell`` with the part, from 0 to
    1, of the elements of ``weights`` that has been asked for.

    What is read several times counts once.
    """

    def __init__(
        self,
        source: WeightSource,
        weights: Mapping[str, PlanWeight],
        tell: Callable[[float], None],
    ) -> None:
        self._source = source
        self._weights = weights
        self._tell = tell
        self._total = sum(math.prod(weight.shape) for weight in weights.values())
        self._read = 0
        self._known: set[tuple[str, int | None]] = set()

    def get(self, name: str) -> WeightValue:
        value = self._source.get(name)
        self._count(name, None, math.prod(self._weights[name].shape))
        return value

    def member(self, name: str, index: int) -> WeightValue:
        value = self._source.member(name, index)
        self._count(name, index, math.prod(self._weights[name].shape[1:]))
        return value

    def has_rows_apart(self, name: str) -> bool:
        return isinstance(self._source, RowSource) and self._source.has_rows_apart(name)

    def rows(self, name: str, first: int, end: int) -> WeightValue:
        assert isinstance(self._source, RowSource)
        value = self._source.rows(name, first, end)
        self._count(name, first, (end - first) * math.prod(self._weights[name].shape[1:]))
        return value

    def names(self) -> Iterable[str]:
        return self._source.names()

    def _count(self, name: str, index: int | None, elements: int) -> None:
        if name not in self._weights or (name, index) in self._known:
            return
        self._known.add((name, index))
        self._read += elements
        self._tell(self._read / self._total)
