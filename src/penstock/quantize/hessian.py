"""Hessians, and the other statistics of a matrix's inputs that rounding needs."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.backends.gram import Gram
from penstock.errors import WeightError

F32 = NDArray[np.float32]

_SOME: Final = 4
"""Rows of each sample that are kept."""
_VOID: Final = 1 / 16
"""Rows per column below which a Hessian is not used. With fewer, AWQ's clipping lost more than
rounding to nearest did, and GPTQ gained 3 %."""
_ROUGH: Final = 10
"""Factor on the damping where there are fewer rows than columns. Without it, GPTQ lost up to 12 %
more than rounding to nearest where columns are hardly correlated; with it, always less
(benchmarks/experiments.md)."""


class Hessian:
    """``x.T @ x`` over the inputs x ``[tokens, k]`` of a matrix on all samples: half of the second
    derivative of the squared output error with respect to a row of the matrix.

    Matrices with the same input share one. ``gram`` sums it sample by sample, in their order.
    An expert gets few rows of a sample, so its rows are collected until there are as many as
    columns, which takes up to as much memory again as the Hessian itself.
    """

    def __init__(self, columns: int, gram: Gram, *, some: bool = True) -> None:
        """``some``: whether a few rows of every sample are kept, and each sample is summed at once;
        else rows are collected first."""
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
        """Whether there were too few rows for the Hessian to be of use."""
        return self.tokens < len(self.peaks) * _VOID

    def damping(self, part: float) -> float:
        """The damping, as a fraction of the mean of the diagonal: ``part``, or ten times that with
        fewer rows than columns, where the Hessian is singular."""
        return part * _ROUGH if self.tokens < len(self.peaks) else part

    @property
    def rows(self) -> F32:
        """A few rows of every sample, ``[rows, k]``."""
        assert self._some is not None
        return np.concatenate(self._some)

    def add(self, rows: F32) -> None:
        """Add rows ``[tokens, k]``."""
        for peaks in (rows.max(axis=0, initial=0), -rows.min(axis=0, initial=0)):
            np.maximum(self.peaks, peaks, out=self.peaks)
        self.tokens += len(rows)
        if self._some is None:
            # Each product reads and writes the whole sum, which costs more than a few rows.
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
        """The Hessian ``[k, k]``. Raises WeightError, naming the matrix, where an input was not
        finite."""
        whole = self._whole()
        if not np.isfinite(np.diagonal(whole)).all():
            raise WeightError(
                f"what {name} multiplies is not finite for this text: the model overflows, or its "
                "weights are damaged; see whether it answers at all (penstock generate)"
            )
        return whole

    def of_scaled(self, factors: F32) -> Hessian:
        """The Hessian of the same inputs with their columns divided by ``factors`` ``[k]``."""
        scaled = Hessian(len(factors), self._gram)
        scaled._sum = (self._whole() / factors) / factors[:, None]
        assert self._some is not None
        scaled._some = [rows / factors for rows in self._some]
        scaled.peaks = self.peaks / factors
        scaled.tokens = self.tokens
        return scaled

    def loss(self, difference: F32) -> float:
        """The squared error of the outputs on all samples, of a matrix with the error
        ``difference`` ``[n, k]``."""
        return float(np.vdot(difference @ self._whole(), difference))
