"""Fits of times: least squares of relative errors, without negative factors."""

from __future__ import annotations

import numpy as np


def nonnegative(
    matrix: np.ndarray, seconds: np.ndarray, relative_to: np.ndarray | None = None
) -> tuple[float, ...]:
    """Return the factors of the columns of ``matrix`` ``[observations, columns]``, none negative,
    that give ``seconds`` ``[observations]`` with the least squares of errors relative to these, or
    to other numbers ``[observations]``.

    Columns whose factor would be negative are left out, one after the other.
    """
    whole = seconds if relative_to is None else relative_to
    weighted = matrix / whole[:, None]
    scale = np.abs(weighted).max(axis=0)
    kept = [column for column in range(matrix.shape[1]) if scale[column] > 0]
    while True:
        found, *_ = np.linalg.lstsq(weighted[:, kept] / scale[kept], seconds / whole, rcond=None)
        if not kept or found.min() >= 0:
            break
        kept.pop(int(found.argmin()))
    factors = np.zeros(matrix.shape[1])
    factors[kept] = found / scale[kept]
    return tuple(map(float, factors))
