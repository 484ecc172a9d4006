"""Codes packed into words, as several formats have them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_CHUNK: Final = 1 << 20
"""Codes that are unpacked at a time, to a byte for each of their bits."""


def words(codes: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """Codes ``[rows, count]`` of ``bits`` bits in words ``[rows, ceil(count * bits / 32)]``, as one
    stream of bits for each row, the lowest first; what is left of the last word is 0."""
    rows, count = codes.shape
    packed = np.zeros((rows, -(-count * bits // 32) * 4), np.uint8)
    step = max(1, _CHUNK // max(1, count))
    for first in range(0, rows, step):
        some = np.ascontiguousarray(codes[first : first + step], np.uint8)
        stream = np.unpackbits(some[:, :, None], axis=2, count=bits, bitorder="little")
        octets = np.packbits(stream.reshape(len(some), -1), axis=1, bitorder="little")
        packed[first : first + step, : octets.shape[1]] = octets
    return packed.view(np.int32)
