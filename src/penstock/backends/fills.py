"""Weights on their way from a checkpoint into a backend's layout, one read ahead of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from penstock.interface.weights import RowSource, WeightSource, WeightValue
from penstock.plan.ops import WeightName

_PIECE: Final = 1 << 23
"""Values of a large matrix that are read at a time: 32 MiB in float32, while they are converted."""
_ROWS: Final = 16
"""Pieces have whole panels of rows (``csrc/kernels/gemm.h``), but for the last."""


@dataclass(frozen=True)
class ByRows:
    """Puts a matrix into the layout, or some of its rows without the others."""

    rows: int
    columns: int
    put: Callable[[WeightValue, int], None]
    """Puts rows of the weight, from the one of that number on."""

    def __call__(self, value: WeightValue) -> None:
        self.put(value, 0)

    def from_row(self, first: int, value: WeightValue) -> None:
        self.put(value, first)

    @property
    def pieces(self) -> Iterator[tuple[int, int]]:
        """The rows (first, end) that are put at a time."""
        each = max(_PIECE // self.columns // _ROWS, 1) * _ROWS
        return ((first, min(first + each, self.rows)) for first in range(0, self.rows, each))


class Fill(NamedTuple):
    """One weight, or one expert's matrix of a stack, and what puts it into the layout."""

    name: WeightName
    put: Callable[[WeightValue], None] | ByRows
    expert: int | None = None

    def steps(self, weights: WeightSource) -> Iterator[_Step]:
        """The fill as steps: of a large matrix some rows at a time, where these can be read
        without the others."""
        put, name = self.put, self.name
        if self.expert is not None:
            yield _Step(partial(weights.member, name, self.expert), put)
        elif (
            isinstance(put, ByRows)
            and put.rows * put.columns > _PIECE
            and isinstance(weights, RowSource)
            and weights.has_rows_apart(name)
        ):
            for first, end in put.pieces:
                read = partial(weights.rows, name, first, end)
                yield _Step(read, partial(put.from_row, first))
        else:
            yield _Step(partial(weights.get, name), put)


class _Step(NamedTuple):
    read: Callable[[], WeightValue]
    put: Callable[[WeightValue], None]


def fill_all(fills: Sequence[Fill], weights: WeightSource) -> None:
    """Carry out ``fills`` in their order; raises what reading and putting raise.

    The next weight, or piece of one, is read, converted or generated while one is put, so that two
    are in memory at most.
    """
    steps = [step for fill in fills for step in fill.steps(weights)]
    with ThreadPoolExecutor(1, "penstock-weights") as reader:
        ahead = [reader.submit(step.read) for step in steps[:1]]
        for i, step in enumerate(steps):
            value = ahead.pop().result()
            if i + 1 < len(steps):
                ahead.append(reader.submit(steps[i + 1].read))
            step.put(value)
            del value  # now: what comes next is in memory already
