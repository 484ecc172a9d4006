"""The spans of groups of codes, found one row at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.quantize.grid import IntegerGrid
from penstock.quantize.spans import PARTS

Floats = np.ndarray[Any, Any]


def fitted(group: Floats, lost: Floats, grid: IntegerGrid) -> tuple[Floats, Floats]:
    """Scales and zeros ``[n]`` of a group ``[n, columns]``, row by row: of all spans that are
    tried, the one with the least sum of squared errors times ``lost``."""
    scales, zeros = np.empty(len(group), np.float32), np.empty(len(group), np.int32)
    for row, values in enumerate(group):
        fits = [grid.fit(values * np.float32(part)) for part in PARTS]
        errors = [
            grid.nearest(values, np.asarray(scale), np.asarray(zero)) - values
            for scale, zero in fits
        ]
        best = int(np.argmin([(each.astype(np.float64) ** 2) @ lost for each in errors]))
        scales[row], zeros[row] = fits[best]
    return scales, zeros
