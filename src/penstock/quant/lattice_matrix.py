"""Matrices whose weights are, 8 by 8, points of a lattice, turned on both sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.quant.lattice import SIZE, every_point, small_points
from penstock.quant.turn import Turn

F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]
LatticeBits = Literal[2, 3, 4]

RESIDUAL_SCALES: Final[Mapping[int, np.float32]] = {3: np.float32(2.04), 4: np.float32(3.45)}
"""Divisors of the second of two points, as QuIP# has them."""
_CHUNK: Final = 1 << 18
"""Codes that become points at a time."""


@dataclass(frozen=True)
class LatticeMatrix:
    """A matrix ``[n, k]`` as ``turn of rows (scale * points) turn of columns``.

    codes uint8 ``[n, ceil(k / 8), bits]``: the bytes of 8 columns. The first two are a code of E8P,
    the low byte first; with 3 bits there is one of the smaller codebook behind it, whose point,
    divided by 2.04, is added; with 4 bits another of E8P, divided by 3.45. Where k is no multiple
    of 8, the last columns of points are left out.
    """

    codes: Bytes
    scale: np.float32
    columns: int
    seed: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.codes), self.columns

    def points(self) -> F32:
        """The points as they are turned, ``[n, 8 * ceil(k / 8)]``."""
        n, blocks, bits = self.codes.shape
        flat = self.codes.reshape(-1, bits)
        values = np.empty((len(flat), SIZE), np.float32)
        for first in range(0, len(flat), _CHUNK):
            some = slice(first, first + _CHUNK)
            values[some] = decoded(flat[some])
        return values.reshape(n, blocks * SIZE)

    def dequantize(self) -> F32:
        """The float32 matrix that the codes stand for, ``[n, k]``."""
        n, k = self.shape
        turned = self.points()[:, :k] * self.scale
        by_rows = Turn(k, self.seed, "input").back(turned)
        return np.ascontiguousarray(Turn(n, self.seed, "output").back(by_rows.T).T)


def decoded(codes: Bytes) -> F32:
    """The points ``[blocks, 8]`` of the bytes of blocks ``[blocks, bits]``."""
    points: F32 = every_point()[_words(codes[:, :2])]
    bits = codes.shape[1]
    if bits == 2:
        return points
    second = small_points()[codes[:, 2]] if bits == 3 else every_point()[_words(codes[:, 2:])]
    sums: F32 = points + second / RESIDUAL_SCALES[bits]
    return sums


def _words(octets: Bytes) -> NDArray[np.uint16]:
    return octets[:, 0].astype(np.uint16) | octets[:, 1].astype(np.uint16) << np.uint16(8)
