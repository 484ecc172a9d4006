"""The Hadamard transform of rows, which spreads what is large over the columns of its block.

An activation has columns that are tens of times as large as the others, and one scale for the row
leaves these few of its 255 codes. In the transform each column is a sum of all of its block, with
signs, so that none stands out. A matrix whose rows are transformed likewise gives the same
products, since the transform is orthogonal but for a factor. (QuaRot, Ashkboos et al. 2024, folds
most of it into other weights; here it is done to each product's rows, so any model will do.)

``csrc/kernels/hadamard.h`` computes the same floats in the same order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

MOST = 512
"""The most columns of a block."""


def block_of(k: int) -> int:
    """The columns of a block in rows of ``k``: the largest power of two that divides it, at most
    512."""
    return min(k & -k, MOST)


def signs(count: int) -> F32:
    """The signs of a block's columns, the same for all blocks: bits of a hash of the column.

    Without them a row of nearly equal values would become one large one.
    """
    mixed = np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B1)
    mixed = (mixed ^ mixed >> np.uint32(15)) * np.uint32(0x85EBCA77)
    mixed ^= mixed >> np.uint32(13)
    return np.where(mixed & np.uint32(1), np.float32(-1), np.float32(1)).astype(np.float32)


def transform_weights(matrix: NDArray[Any]) -> F32:
    """Rows of ``matrix`` ``[n, k]``, of any floating type, times signs and Hadamard's matrix."""
    b = block_of(matrix.shape[-1])
    return _butterflies(_blocks(matrix, b) * signs(b)).reshape(matrix.shape)


def transform_rows(x: NDArray[Any]) -> F32:
    """As :func:`transform_weights`, divided by the block's columns: products with transformed
    weights are those of ``x`` ``[rows, k]`` with the weights."""
    b = block_of(x.shape[-1])
    return _butterflies(_blocks(x, b) * (signs(b) / np.float32(b))).reshape(x.shape)


def restore_weights(matrix: F32) -> F32:
    """The matrix whose :func:`transform_weights` is ``matrix``, but for rounding."""
    b = block_of(matrix.shape[-1])
    return (_butterflies(_blocks(matrix, b)) * (signs(b) / np.float32(b))).reshape(matrix.shape)


def _blocks(x: NDArray[Any], b: int) -> F32:
    return x.astype(np.float32).reshape(-1, b)


def _butterflies(x: F32) -> F32:
    """``x`` ``[rows, b]`` times Hadamard's matrix: sums, differences at distances 1, 2, 4, ..."""
    rows, b = x.shape
    distance = 1
    with np.errstate(invalid="ignore", over="ignore"):
        while distance < b:
            pairs = x.reshape(rows, b // (2 * distance), 2, distance)
            first, second = pairs[:, :, 0], pairs[:, :, 1]
            x = np.stack([first + second, first - second], axis=2).reshape(rows, b)
            distance *= 2
    return x
