"""Arrays as the native executor takes them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from penstock.backends.cpu.interface import Bytes
from penstock.models.spec import DType

DTYPES: dict[DType, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}


def as_bytes(array: NDArray[Any]) -> Bytes:
    """The bytes of an array, row by row; a view where they lie so."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
