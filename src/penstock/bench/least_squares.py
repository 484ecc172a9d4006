"""A line through points, and how sure its slope is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.bench.student import quantile

Floats = NDArray[np.float64]
_LEVEL: Final = 0.95
_LEAST: Final = 4
"""Groups below which a slope's interval says nothing."""


@dataclass(frozen=True)
class Line:
    """y = intercept + slope * x."""

    intercept: float
    slope: float
    low: float
    """The lower end of the slope's interval of 95 %; ``high`` is the upper one."""
    high: float
    points: int
    groups: int

    @property
    def certain(self) -> bool:
        """Whether the slope differs from 0 beyond its interval."""
        return self.low > 0 or self.high < 0

    def at(self, x: float) -> float:
        return self.intercept + self.slope * x


def line(x: Floats, y: Floats, owner: NDArray[np.int64] | None = None) -> Line | None:
    """The line of least squares; None of fewer than four groups, or where all ``x`` are equal.

    ``owner`` tells the group of each point, such as its request: points of a group are alike, and
    the interval counts groups (Liang and Zeger, Longitudinal data analysis using generalized linear
    models, 1986), nor does it take the scatter to be the same everywhere. Without it each point is
    a group.
    """
    owner = np.arange(len(x)) if owner is None else np.unique(owner, return_inverse=True)[1]
    groups = int(owner.max()) + 1 if len(x) else 0
    if groups < _LEAST or np.ptp(x) == 0:
        return None
    away = x - x.mean()
    spread = float(away @ away)
    slope = float(away @ y) / spread
    intercept = float(y.mean() - slope * x.mean())
    left = y - intercept - slope * x
    by_group = np.bincount(owner, weights=away * left, minlength=groups)
    variance = float(by_group @ by_group) * groups / (groups - 2) / spread**2
    half = quantile(_LEVEL, groups - 2) * math.sqrt(variance)
    return Line(intercept, slope, slope - half, slope + half, len(x), groups)
