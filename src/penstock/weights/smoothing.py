"""Smoothing factors: they even out the columns of matrices that are rounded
(``plan/balance.py`` says why)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.interface.plan_weights import Balance

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

MAX_FACTOR: Final = 16.0
"""The largest factor; the smallest is its reciprocal."""
_STEPS_PER_OCTAVE: Final = 8
"""Factors of an octave. Norms may differ in their last bits from machine to machine, and the
factors do not."""
_CHUNK: Final = 1 << 20
"""Number of elements that are squared at a time."""


def smoothing_factors(matrices: Iterable[NDArray[Any]], measured: F64 | None = None) -> F32:
    """The factors float32 ``[k]`` of the columns of ``matrices``, each ``[n, k]``.

    Without ``measured`` they give all columns one norm. With it, which has the squared norm of each
    column of the input over a text (:func:`column_squares`), a factor is the root of the input's
    norm over the matrices': then column i has as large a part in one as in the other, and the
    product of what the two lose is least. Norms are of rows of length 1, since each row is rounded
    to a grid of its own. A factor is a power of ``2 ** (1 / 8)`` between 1/16 and 16. All are 1
    where a value is not finite, which the rounding refuses.
    """
    squares = sum(column_squares(matrix) for matrix in matrices)
    assert isinstance(squares, np.ndarray)
    tiny = np.finfo(np.float64).tiny
    if not np.isfinite(squares).all() or (measured is not None and not np.isfinite(measured).all()):
        return np.ones(len(squares), np.float32)
    ratios = np.sqrt(max(squares.mean(), tiny) / np.maximum(squares, tiny))
    if measured is not None:
        ratios = np.sqrt(ratios * np.sqrt(measured / max(measured.mean(), tiny)))
    steps = np.rint(_STEPS_PER_OCTAVE * np.log2(np.clip(ratios, 1 / MAX_FACTOR, MAX_FACTOR)))
    factors: F32 = np.exp2(steps / _STEPS_PER_OCTAVE).astype(np.float32)
    return factors


def smoothed(value: NDArray[Any], balance: Balance, factors: F32) -> F32:
    """``value``, in float32, as ``balance`` has it with these factors."""
    if balance.side == "matrix":
        return value.astype(np.float32) * factors
    return (value.astype(np.float32).T / factors).T


def column_squares(matrix: NDArray[Any]) -> F64:
    """The squared norms ``[k]`` of columns, of the rows of ``matrix`` divided by their norms."""
    total = np.zeros(matrix.shape[1], np.float64)
    rows = max(1, _CHUNK // max(matrix.shape[1], 1))
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, len(matrix), rows):
            squares = np.square(matrix[first : first + rows].astype(np.float32))
            norms = squares.sum(axis=1, keepdims=True)
            np.divide(squares, norms, out=squares, where=norms != 0)
            total += squares.sum(axis=0)
    return total
