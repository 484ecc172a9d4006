"""Lattice points in words of 32 bits, as kernels look them up: a nibble for each component.

Twice a component of the smaller codebook is a whole number from -4 to 4, a nibble in two's
complement. A component of E8P is ``(2 * s + up) / 2 + 1/4``, where a magnitude of t + 1/2 has
``s = t``, or ``-1 - t`` where it is negative: the other bits of t. So what bits 0 to 7 of a code
choose has nibbles of ``2 * t``, and what bits 8 to 15 say is an exclusive or: all but the lowest
bit of the components that are negative, and the lowest of all where they are moved up. Which sign
the last component has, so that the sum is even, is in both tables: the parity of the magnitudes in
one, that of the other signs in the other.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.quant.lattice import SIZE, first_odd, magnitudes, small_points

I32 = NDArray[np.int32]

SIGNS: Final = 256
"""Where in :func:`lattice_tables` signs and moves begin, by the upper byte of a code of E8P."""
SMALL: Final = 512
"""Where points of the smaller codebook begin, by their code."""
_TOP: Final = np.uint32(0x88888888)
"""The highest bit of each nibble, which tables have turned: a nibble is then its number and 8."""


def lattice_tables() -> I32:
    """Magnitudes, signs and moves, and the points of the smaller codebook, ``[768]``."""
    kinds = np.arange(256)
    of_magnitudes = 2 * (magnitudes() - 0.5).astype(np.int64)
    of_magnitudes[:, -1] ^= np.where(kinds >= first_odd(), 14, 0)
    bits = kinds[:, None] >> np.arange(SIZE - 1) & 1
    negative = np.concatenate([bits, bits.sum(axis=1, keepdims=True) & 1], axis=1)
    of_signs = 14 * negative | 1 - (kinds >> 7)[:, None]
    tables = [
        _words(of_magnitudes) ^ _TOP,
        _words(of_signs),
        _words((2 * small_points()).astype(np.int64)) ^ _TOP,
    ]
    return np.concatenate(tables).view(np.int32)


def _words(nibbles: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Nibbles ``[256, 8]`` in words ``[256]``, the first lowest."""
    words = ((nibbles & 15) << 4 * np.arange(SIZE)).sum(axis=1)
    found: NDArray[np.uint32] = words.astype(np.uint32)
    return found
