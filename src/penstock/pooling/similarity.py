"""How alike two texts are by their embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """The cosine of the angle between two vectors of length 1, or of length 0."""
    product = float(np.dot(np.asarray(one, np.float64), np.asarray(other, np.float64)))
    return min(max(product, -1.0), 1.0)
