"""What a matrix multiplies, as far as rounding it needs to know."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.backends.gram import Gram
from penstock.errors import WeightError

F32 = NDArray[np.float32]

_SOME: Final = 4
"""Rows of each text that are kept as they are."""
_VOID: Final = 1 / 16
"""Rows for each column below which nothing is made of a Hessian. With fewer, clipping by it (AWQ)
lost more than rounding to nearest, and GPTQ gained 3 %."""
_ROUGH: Final = 10
"""What damping is multiplied by where there are fewer rows than columns: without, GPTQ lost up to
12 % more than rounding to nearest where columns depend on each other little, and with it always
less (benchmarks/experiments.md)."""


class Hessian:
    """``x.T @ x`` of all rows x ``[tokens, k]`` that a matrix multiplies: half of the second
    derivative of the squared error of its outputs by a row of it.

    For matrices that multiply the same there is one. It is summed by ``gram``, a text at a time, in
    the order of the texts; of texts with few rows, several at a time.
    """

    def __init__(self, columns: int, gram: Gram, *, some: bool = True) -> None:
        """``some``: whether a few rows of every text are kept."""
        self._gram = gram
        self._sum: F32 = np.zeros((columns, columns), np.float32)
        self._is_whole = True
        self._some: list[F32] | None = [] if some else None
        self._waiting: list[F32] = []
        self.peaks: F32 = np.zeros(columns, np.float32)
        """The largest magnitude of each column."""
        self.tokens = 0

    @property
    def is_void(self) -> bool:
        """Whether too few rows were added to tell anything of those that are to come."""
        return self.tokens < len(self.peaks) * _VOID

    def damping(self, part: float) -> float:
        """What is to be added to the diagonal, as a part of its mean, where ``part`` is for as many
        rows as one likes: more, if there are fewer rows than columns, since such a sum says nothing
        of some directions."""
        return part * _ROUGH if self.tokens < len(self.peaks) else part

    @property
    def rows(self) -> F32:
        """A few rows of every text, ``[rows, k]``."""
        assert self._some is not None
        return np.concatenate(self._some)

    def add(self, rows: F32) -> None:
        """Add rows ``[tokens, k]``."""
        for peaks in (rows.max(axis=0, initial=0), -rows.min(axis=0, initial=0)):
            np.maximum(self.peaks, peaks, out=self.peaks)
        self.tokens += len(rows)
        if self._some is None:
            # Products of few rows, as experts have of a text, wait for the sums' memory.
            self._waiting.append(rows.copy())
            if sum(map(len, self._waiting)) >= len(self.peaks):
                self._add(np.concatenate(self._waiting))
                self._waiting.clear()
            return
        self._add(rows)
        step = max(1, len(rows) // _SOME)  # not the first rows, which are unlike all others
        self._some.append(rows[step // 2 :: step][:_SOME].copy())

    def _add(self, rows: F32) -> None:
        self._gram.add(rows, self._sum)
        self._is_whole = False

    def _whole(self) -> F32:
        """The sum of all rows that were added."""
        if self._waiting:
            self._add(np.concatenate(self._waiting))
            self._waiting.clear()
        if not self._is_whole:
            self._gram.mirror(self._sum)
            self._is_whole = True
        return self._sum

    def sums(self, name: str) -> F32:
        """``[k, k]``. Raises WeightError, naming the matrix, where a value is not finite."""
        whole = self._whole()
        if not np.isfinite(np.diagonal(whole)).all():
            raise WeightError(
                f"what {name} multiplies is not finite for this text: the model overflows, or its "
                "weights are damaged; see whether it answers at all (penstock generate)"
            )
        return whole

    def of_scaled(self, factors: F32) -> Hessian:
        """That of rows whose columns are divided by ``factors`` ``[k]``."""
        scaled = Hessian(len(factors), self._gram)
        scaled._sum = (self._whole() / factors) / factors[:, None]
        assert self._some is not None
        scaled._some = [rows / factors for rows in self._some]
        scaled.peaks = self.peaks / factors
        scaled.tokens = self.tokens
        return scaled

    def loss(self, difference: F32) -> float:
        """The squared error of all outputs of a matrix that differs by ``difference`` ``[n, k]``
        from what it should be."""
        return float(np.vdot(difference @ self._whole(), difference))
