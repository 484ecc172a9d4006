"""What matrices multiply: rows of all tokens or, of an expert's, those of the tokens that the
router gives to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.backends.gram import Gram
from penstock.plan.ops import Buffer, BufferName, Rows
from penstock.quantize.hessian import Hessian

F32 = NDArray[np.float32]

EXPERTS_BYTES: Final = 4 << 30
"""Bytes of the Hessians of a layer's experts that are in memory at a time. Rows that wait to be
summed may take as much again."""


@dataclass(frozen=True)
class Input:
    """The rows that a matrix multiplies."""

    rows: Buffer
    """``[T, k]`` or, where experts have rows of their own, ``[chosen * T, k]``."""
    ids: Buffer | None = None
    """The experts of each token, int32 ``[T, chosen]``, where it is an expert's matrix."""
    expert: int = 0
    """Which of them it is."""

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return (self.rows,) if self.ids is None else (self.rows, self.ids)

    @property
    def engine_input(self) -> str:
        """What inputs have in common whose matrices must have the same number of bits: engines
        multiply all experts of a layer in one go."""
        return self.rows.name if self.ids is None else self.ids.name

    def of(self, returned: Mapping[BufferName, NDArray[Any]]) -> F32:
        """The rows ``[rows, k]``, of what a piece has returned for a text."""
        rows: F32 = returned[self.rows.name]
        if self.ids is None:
            return rows
        ids = returned[self.ids.name]
        places = np.flatnonzero(ids.reshape(-1) == self.expert)
        if self.rows.rows == Rows.TOKENS:
            places //= ids.shape[1]
        given: F32 = rows[places]
        return given


def hessians_of(inputs: Iterable[Input], gram: Gram) -> dict[Input, Hessian]:
    """A Hessian of each input, without rows yet, to be summed by ``gram``."""
    return {each: Hessian(each.rows.cols, gram, some=each.ids is None) for each in inputs}


def add_rows(
    hessians: Mapping[Input, Hessian], returned: Mapping[BufferName, NDArray[Any]]
) -> None:
    """Add to each input's Hessian its rows, of what a piece has returned for a text."""
    for each, hessian in hessians.items():
        hessian.add(each.of(returned))


def in_passes(inputs: Iterable[Input], experts_bytes: int) -> Iterator[tuple[Input, ...]]:
    """Group inputs whose Hessians are in memory together. The first group has the inputs that all
    tokens share; every group has as many of experts as fit in ``experts_bytes``, at least one."""
    now: list[Input] = []
    taken = 0
    for each in sorted(dict.fromkeys(inputs), key=lambda each: each.ids is not None):
        size = 4 * each.rows.cols**2 if each.ids is not None else 0
        if taken and taken + size > experts_bytes:
            yield tuple(now)
            now, taken = [], 0
        now.append(each)
        taken += size
    if now:
        yield tuple(now)
