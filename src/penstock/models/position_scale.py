"""Factors of queries that grow with their position, as data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PositionScale:
    """The query at position p is multiplied by ``1 + beta * log(1 + (p + offset) // period)``."""

    beta: float
    period: int
    offset: int = 0

    def factors(self, max_positions: int) -> NDArray[np.float32]:
        """The factor of each ``(p + offset) // period`` that positions below ``max_positions``
        have, computed in float64 and rounded once."""
        count = (max_positions - 1 + self.offset) // self.period + 1
        factors: NDArray[np.float64] = 1.0 + self.beta * np.log1p(np.arange(count))
        return factors.astype(np.float32)
