"""Weights that no checkpoint has, beside those of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.interface.weights import RowSource, WeightSource, WeightValue
from penstock.weights.key_scaling import F32


class MeasuredWeights:
    """A WeightSource that gives ``measured`` by name, and all else as ``source`` does."""

    def __init__(self, source: WeightSource, measured: Mapping[str, F32]) -> None:
        self._source = source
        self._measured = measured

    def get(self, name: str) -> WeightValue:
        return self._measured[name] if name in self._measured else self._source.get(name)

    def member(self, name: str, index: int) -> WeightValue:
        return self._source.member(name, index)

    def has_rows_apart(self, name: str) -> bool:
        return isinstance(self._source, RowSource) and self._source.has_rows_apart(name)

    def rows(self, name: str, first: int, end: int) -> WeightValue:
        assert isinstance(self._source, RowSource)
        return self._source.rows(name, first, end)

    def names(self) -> Iterable[str]:
        return [*self._source.names(), *self._measured]
