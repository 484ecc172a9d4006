"""Matrices whose codes are places in a table, such as the values of a small floating-point type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class CodebookTensor:
    """An ``[n, k]`` matrix as ``table[code] * scale``, the scale of the tile that a code is in.

    table float32 ``[codes]``; codes uint8 ``[n, k]``; scales float32, one for each ``tile`` (rows,
    columns) of the matrix, ``[ceil(n / rows), ceil(k / columns)]``. The last tiles are smaller
    where the matrix is no whole number of them. A value is one float32 product.
    """

    table: F32
    codes: NDArray[np.uint8]
    scales: F32
    tile: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        n, k = self.codes.shape
        return n, k

    def rows(self, *runs: tuple[int, int]) -> CodebookTensor:
        """The matrix of the rows of ``runs`` (first, end), one after another."""
        tall, wide = self.tile
        places = np.concatenate([np.arange(first, end) for first, end in runs])
        codes = [self.codes[first:end] for first, end in runs]
        taken: NDArray[Any] = codes[0] if len(codes) == 1 else np.concatenate(codes)
        return CodebookTensor(self.table, taken, self.scales[places // tall], (1, wide))

    def taken(self, rows: NDArray[np.intp]) -> CodebookTensor:
        """The matrix of those rows, in that order."""
        tall, wide = self.tile
        return CodebookTensor(self.table, self.codes[rows], self.scales[rows // tall], (1, wide))

    def dequantize(self) -> F32:
        """The float32 matrix that the codes stand for, ``[n, k]``."""
        n, k = self.codes.shape
        tall, wide = self.tile
        values: F32 = self.table[self.codes]
        if tall > 1:
            for i, scales in enumerate(self.scales):
                values[i * tall : (i + 1) * tall] *= np.repeat(scales, wide)[:k]
            return values
        whole = k // wide * wide
        by_tile = values[:, :whole].reshape(n, k // wide, wide)  # of some columns, a copy
        by_tile *= self.scales[:, : k // wide, None]
        if whole == k:
            return by_tile.reshape(n, k)
        values[:, :whole] = by_tile.reshape(n, whole)
        values[:, whole:] *= self.scales[:, k // wide :]
        return values
