"""Codes packed into words, as several formats have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]


def words(codes: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """Codes ``[rows, count]`` of 2, 4 or 8 bits in words ``[rows, count * bits / 32]``: the first
    is in the lowest bits, and what is left of a row's last word is 0."""
    together = 32 // bits
    rows, count = codes.shape
    padded = np.zeros((rows, -(-count // together) * together), np.uint32)
    padded[:, :count] = codes
    shifts = np.arange(together, dtype=np.uint32) * np.uint32(bits)
    shifted = padded.reshape(rows, -1, together) << shifts
    packed: NDArray[np.uint32] = np.bitwise_or.reduce(shifted, axis=2)
    return packed.view(np.int32)
