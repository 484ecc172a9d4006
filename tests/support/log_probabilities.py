"""Logits as log-probabilities, by the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def log_probabilities(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Those of each row, the last axis of which is the vocabulary."""
    rows = logits.astype(np.float64)
    rows -= rows.max(axis=-1, keepdims=True)
    rows -= np.log(np.exp(rows).sum(axis=-1, keepdims=True))
    return rows
