"""Draws of many sequences at once, for samplers that send them to a device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def draws64(keys: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """:func:`~penstock.sampling.draws.draw64` of stream 0, element by element.

    That module has the source of the constants, and imports no array library.
    """
    value: NDArray[np.uint64] = keys + (positions + np.uint64(1)) * _GAMMA
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    value ^= value >> np.uint64(31)
    return value
