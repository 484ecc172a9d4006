"""How tests hand arrays to the native library's raw kernels."""

from __future__ import annotations

import numpy as np


def as_bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of ``array``, row by row, in one dimension."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
