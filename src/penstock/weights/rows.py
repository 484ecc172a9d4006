"""Slices of rows of arrays, joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Runs = Sequence[tuple[int, int]]
"""Runs of rows (first, end), one after another."""


def rows_of(array: NDArray[Any], runs: Runs | None) -> NDArray[Any]:
    """The rows of ``runs``, of one run a view; None: all."""
    if runs is None:
        return array
    if len(runs) == 1:
        some: NDArray[Any] = array[slice(*runs[0])]
        return some
    return np.concatenate([array[first:end] for first, end in runs])
