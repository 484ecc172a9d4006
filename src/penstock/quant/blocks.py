"""Matrices in blocks, as published formats of files have them.

A *block* is some neighbouring columns of a row, with whatever their values are computed from, in a
fixed number of bytes. Matrices stay in these bytes from the file to the kernels, which have a
decoder for each format of their own; :func:`BlockFormat.decode` is what they are compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.quant.scheme import BlockScheme

F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_CHUNK = 1 << 18
"""Number of values decoded at a time, so that what is between bytes and values runs in cache."""


@dataclass(frozen=True)
class BlockFormat:
    """One format of blocks: its sizes, and the values that a block stands for."""

    scheme: BlockScheme
    decode: Callable[[Bytes], F32]
    """Turns uint8 ``[blocks, block_bytes]`` into the values float32 ``[blocks, columns]``, with
    every operation rounded as in ggml's code for the same blocks."""
    unusable: Callable[[Bytes], NDArray[np.bool_]] | None = None
    """Turns uint8 ``[blocks, block_bytes]`` into bool ``[blocks]``: whether the scales of a block
    are such that its values are not finite. None: those of no block are."""


@dataclass(frozen=True)
class BlockTensor:
    """An ``[n, k]`` matrix in blocks: uint8 ``[n, k / columns, block_bytes]``, often a view of a
    file that is mapped into memory."""

    format: BlockFormat
    blocks: Bytes

    @property
    def scheme(self) -> BlockScheme:
        return self.format.scheme

    @property
    def shape(self) -> tuple[int, int]:
        n, blocks, _ = self.blocks.shape
        return n, blocks * self.scheme.columns

    def first_unusable(self) -> int | None:
        """The first row with a block whose scales are not finite; None where all can be used.

        Only the bytes of scales are read.
        """
        unusable = self.format.unusable
        if unusable is None:
            return None
        n, count, nbytes = self.blocks.shape
        rows = max(1, _CHUNK // max(count, 1))
        for first in range(0, n, rows):
            some = self.blocks[first : first + rows]
            found = unusable(some.reshape(len(some) * count, nbytes))
            if found.any():
                return int(first + found.argmax() // count)
        return None

    def rows(self, *runs: tuple[int, int]) -> BlockTensor:
        """The matrix of the rows of ``runs`` (first, end), one after another; of one run, a
        view."""
        if len(runs) == 1:
            return BlockTensor(self.format, self.blocks[slice(*runs[0])])
        taken = [self.blocks[first:end] for first, end in runs]
        return BlockTensor(self.format, np.concatenate(taken))

    def taken(self, rows: NDArray[np.integer]) -> BlockTensor:
        """The matrix of those rows, in that order."""
        return BlockTensor(self.format, self.blocks[rows])

    def dequantize(self) -> F32:
        """The float32 matrix that the blocks stand for, ``[n, k]``."""
        n, count, nbytes = self.blocks.shape
        values = np.empty((n, count * self.scheme.columns), np.float32)
        rows = max(1, _CHUNK // max(values.shape[1], 1))
        for first in range(0, n, rows):
            some = self.blocks[first : first + rows]
            decoded = self.format.decode(some.reshape(len(some) * count, nbytes))
            values[first : first + rows] = decoded.reshape(len(some), -1)
        return values
