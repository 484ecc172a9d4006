"""Matrices whose rows have values of their own, which codes name, and a few weights in floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.quant.scheme import CodebookScheme

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

_ROWS: Final = 256
"""Rows whose codes are unpacked at a time."""


@dataclass(frozen=True)
class CodebookMatrix:
    """A matrix ``[n, k]``, as SqueezeLLM stores it (Kim et al., arXiv 2306.07629).

    codes int32 ``[n, ceil(k * bits / 32)]``: a stream of bits for each row, the first code in the
    lowest. values float32 ``[n, 2 ** bits]``: what the codes of a row stand for. Weight
    ``columns[i]`` of row r is ``outliers[i]``, whatever its code, for i from ``ends[r]`` to
    ``ends[r + 1]``: int32 ``[count]``, ascending in a row, float32 ``[count]`` and int32
    ``[n + 1]``.
    """

    scheme: CodebookScheme
    codes: I32
    values: F32
    ends: I32
    columns: I32
    outliers: F32
    k: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.codes), self.k

    def rows(self, *runs: tuple[int, int]) -> CodebookMatrix:
        """The matrix of the rows of ``runs`` (first, end), one after another."""
        return self.taken(np.concatenate([np.arange(first, end) for first, end in runs]))

    def taken(self, rows: NDArray[np.intp]) -> CodebookMatrix:
        """The matrix of those rows, in that order."""
        counts = np.diff(self.ends)[rows]
        ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        at = np.repeat(self.ends[rows] - ends[:-1], counts) + np.arange(ends[-1])
        codes, values = self.codes[rows], self.values[rows]
        columns, outliers = self.columns[at], self.outliers[at]
        return CodebookMatrix(self.scheme, codes, values, ends, columns, outliers, self.k)

    def dequantize(self) -> F32:
        """The float32 matrix that the codes stand for, ``[n, k]``."""
        matrix = np.empty(self.shape, np.float32)
        for first in range(0, len(matrix), _ROWS):
            some = slice(first, first + _ROWS)
            matrix[some] = np.take_along_axis(self.values[some], self._places(some), axis=1)
        rows = np.repeat(np.arange(len(matrix)), np.diff(self.ends))
        matrix[rows, self.columns] = self.outliers
        return matrix

    def _places(self, some: slice) -> NDArray[np.intp]:
        """The codes of some rows, ``[rows, k]``."""
        bits = self.scheme.bits
        octets = self.codes[some].astype("<i4", copy=False).view(np.uint8)
        single = np.unpackbits(octets, axis=1, bitorder="little")[:, : self.k * bits]
        each = single.reshape(len(octets), self.k, bits)
        places: NDArray[np.intp] = (each << np.arange(bits, dtype=np.uint8)).sum(2, dtype=np.intp)
        return places
