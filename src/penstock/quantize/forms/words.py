"""Codes packed into words, as several formats have them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def words(codes: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """Codes ``[rows, count]`` of ``bits`` bits in words ``[rows, ceil(count * bits / 32)]``, as one
    stream of bits for each row, the lowest first; what is left of the last word is 0."""
    rows, count = codes.shape
    stream = np.unpackbits(
        np.ascontiguousarray(codes, np.uint8)[:, :, None], axis=2, count=bits, bitorder="little"
    ).reshape(rows, count * bits)
    packed = np.zeros((rows, -(-count * bits // 32) * 4), np.uint8)
    octets = np.packbits(stream, axis=1, bitorder="little")
    packed[:, : octets.shape[1]] = octets
    return packed.view(np.int32)
