"""What a matrix multiplies, as far as rounding it needs to know."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError

F32 = NDArray[np.float32]

_SOME: Final = 4
"""Rows of each text that are kept as they are."""


class Hessian:
    """``x.T @ x`` of all rows x ``[tokens, k]`` that a matrix multiplies: half of the second
    derivative of the squared error of its outputs by a row of it.

    For matrices that multiply the same there is one. It is summed in float32, a text at a time, in
    the order of the texts.
    """

    def __init__(self, columns: int) -> None:
        self._sum: F32 = np.zeros((columns, columns), np.float32)
        self._some: list[F32] = []
        self.peaks: F32 = np.zeros(columns, np.float32)
        """The largest magnitude of each column."""
        self.tokens = 0

    @property
    def rows(self) -> F32:
        """A few rows of every text, ``[rows, k]``."""
        return np.concatenate(self._some)

    def add(self, rows: F32) -> None:
        """Add rows ``[tokens, k]``."""
        self._sum += rows.T @ rows  # which NumPy computes half of: the rest is its mirror
        np.maximum(self.peaks, np.abs(rows).max(axis=0, initial=0), out=self.peaks)
        step = max(1, len(rows) // _SOME)  # not the first rows, which are unlike all others
        self._some.append(rows[step // 2 :: step][:_SOME].copy())
        self.tokens += len(rows)

    def sums(self, name: str) -> F32:
        """``[k, k]``. Raises WeightError, naming the matrix, where a value is not finite."""
        if not np.isfinite(np.diagonal(self._sum)).all():
            raise WeightError(
                f"what {name} multiplies is not finite for this text: the model overflows, or its "
                "weights are damaged; see whether it answers at all (penstock generate)"
            )
        return self._sum

    def of_scaled(self, factors: F32) -> Hessian:
        """That of rows whose columns are divided by ``factors`` ``[k]``."""
        scaled = Hessian(len(factors))
        scaled._sum = (self._sum / factors) / factors[:, None]
        scaled._some = [rows / factors for rows in self._some]
        scaled.peaks = self.peaks / factors
        scaled.tokens = self.tokens
        return scaled

    def loss(self, difference: F32) -> float:
        """The squared error of all outputs of a matrix that differs by ``difference`` ``[n, k]``
        from what it should be."""
        return float(np.vdot(difference @ self._sum, difference))
