"""Fours of 2:4 sparse weights."""

from __future__ import annotations

from typing import Any

import numpy as np


def zeros_of_fours(matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The number of zeros in each four of a matrix ``[n, k]``: ``[n, k / 4]``."""
    zeros: np.ndarray[Any, Any] = (matrix.reshape(len(matrix), -1, 4) == 0).sum(axis=2)
    return zeros
