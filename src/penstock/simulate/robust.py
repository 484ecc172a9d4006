"""Fits that a few strange observations do not move: of times, on a machine that others disturb."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.sizing.least_squares import nonnegative

F64 = NDArray[np.float64]

_TURN: Final = 1.345
"""Errors beyond so many standard deviations count in proportion, not by their squares; 95 % of the
efficiency of least squares is kept where errors are normal (Huber, "Robust statistics", 1981)."""
_NORMAL: Final = 1.4826
"""The standard deviation of normal errors over the median of their absolute values."""
_ROUNDS: Final = 25
_NO_SPREAD: Final = 1e-4
"""Relative errors below which all is exact, and no observation strange."""


def robust_nonnegative(matrix: F64, seconds: F64, counts: F64 | None = None) -> F64:
    """Return the factors of the columns of ``matrix`` ``[observations, columns]``, none negative,
    that give ``seconds`` ``[observations]``: Huber's estimate of relative errors, by least squares
    that are weighted anew each time.

    Errors are relative to what is predicted: relative to what was observed, they would pull towards
    the observations that are low by chance. ``counts``: how much each observation counts; None:
    all as much.
    """
    counted = np.ones(len(seconds)) if counts is None else counts / counts.max()
    relative = np.sqrt(counted) / np.maximum(seconds, _least(seconds))
    factors = _weighted_least_squares(matrix, seconds, relative)
    for _ in range(_ROUNDS):
        predicted = np.maximum(matrix @ factors, _least(seconds))
        errors = seconds / predicted - 1
        spread = max(_NORMAL * float(np.median(np.abs(errors))), _NO_SPREAD)
        weights = np.minimum(1.0, _TURN * spread / np.maximum(np.abs(errors), 1e-12))
        found = _weighted_least_squares(matrix, seconds, np.sqrt(weights * counted) / predicted)
        done = bool(np.allclose(matrix @ found, matrix @ factors, rtol=1e-4))
        factors = found
        if done:
            break
    return factors


def robust_mean(values: F64) -> float:
    """The mean of ``values`` without those that are strange: Huber's estimate of their place."""
    place = float(np.median(values))
    spread = _NORMAL * float(np.median(np.abs(values - place)))
    if spread <= 0:
        return place
    for _ in range(_ROUNDS):
        weights = np.minimum(1.0, _TURN * spread / np.maximum(np.abs(values - place), 1e-12))
        place = float(weights @ values / weights.sum())
    return place


def _weighted_least_squares(matrix: F64, seconds: F64, weights: F64) -> F64:
    """Factors, none negative, with the least squares of errors times ``weights``. Of thousands of
    observations a triangle is kept that has the same squares (QR), so it is quick."""
    joined = np.column_stack([matrix, seconds]) * weights[:, None]
    triangle: F64 = np.linalg.qr(joined, mode="r")  # type: ignore[assignment]
    known, asked = triangle[:, :-1], triangle[:, -1]
    return np.array(nonnegative(known, asked, np.ones(len(asked))))


def _least(seconds: F64) -> float:
    """Times below which nothing is relative: a hundredth of the median."""
    return max(float(np.median(seconds)) / 100, 1e-9)
