"""Weights on their way from a checkpoint into a backend's layout, one read ahead of another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import NamedTuple

from penstock.interface.weights import WeightSource, WeightValue
from penstock.plan.ops import WeightName


class Fill(NamedTuple):
    """One weight, or one expert's matrix of a stack, and what puts it into the layout."""

    name: WeightName
    put: Callable[[WeightValue], None]
    expert: int | None = None

    def read(self, weights: WeightSource) -> WeightValue:
        if self.expert is None:
            return weights.get(self.name)
        return weights.member(self.name, self.expert)


def fill_all(fills: Sequence[Fill], weights: WeightSource) -> None:
    """Carry out ``fills`` in their order; raises what reading and putting raise.

    The next weight is read, converted or generated while one is put, so that two are in memory at
    most.
    """
    with ThreadPoolExecutor(1, "penstock-weights") as reader:
        ahead = [reader.submit(fill.read, weights) for fill in fills[:1]]
        for fill, following in zip_longest(fills, fills[1:]):
            value = ahead.pop().result()
            if following is not None:
                ahead.append(reader.submit(following.read, weights))
            fill.put(value)
