"""Matrices whose weights are, 8 by 8, points of a lattice, turned on both sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.quant.lattice import SIZE, every_point, small_points
from penstock.quant.scheme import LatticeScheme
from penstock.quant.turn import Turn

F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]

RESIDUAL_SCALES: Final[Mapping[int, np.float32]] = {3: np.float32(2.04), 4: np.float32(3.45)}
"""Divisors of the second of two points, as QuIP# has them."""
_CHUNK: Final = 1 << 18
"""Codes that become points at a time."""


@dataclass(frozen=True)
class LatticeMatrix:
    """A matrix ``[n, k]``: points times a scale, from which turns of columns and of rows
    (:class:`~penstock.quant.turn.Turn`) are undone.

    codes uint8 ``[n, ceil(k / 8), bits]``: the bytes of 8 columns. The first two are a code of E8P,
    the low byte first; with 3 bits there is one of the smaller codebook behind it, whose point,
    divided by 2.04, is added; with 4 bits another of E8P, divided by 3.45. Where k is no multiple
    of 8, the last columns of points are left out.

    Undoing the turn of rows joins all of them, so some rows of a matrix are those that are
    ``kept``, int ``[m]``, of all codes; None: all rows.
    """

    scheme: LatticeScheme
    codes: Bytes
    scale: np.float32
    columns: int
    kept: NDArray[np.intp] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.codes if self.kept is None else self.kept), self.columns

    @property
    def turn_of_columns(self) -> Turn:
        return Turn(self.columns, self.scheme.seed, "input")

    @property
    def turn_of_rows(self) -> Turn:
        return Turn(len(self.codes), self.scheme.seed, "output")

    def rows(self, *runs: tuple[int, int]) -> LatticeMatrix:
        """The matrix of the rows of ``runs`` (first, end), one after another."""
        return self.taken(np.concatenate([np.arange(first, end) for first, end in runs]))

    def taken(self, rows: NDArray[np.intp]) -> LatticeMatrix:
        """The matrix of those rows, in that order."""
        return replace(self, kept=rows if self.kept is None else self.kept[rows])

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
        turned = self.points()[:, : self.columns] * self.scale
        by_rows = self.turn_of_columns.back(turned)
        whole = self.turn_of_rows.back(by_rows.T).T
        return np.ascontiguousarray(whole if self.kept is None else whole[self.kept])


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
