"""Rounding to a row's 8-bit grid, and to windows of 4 bits on it.

The rows of a matrix have one scale each, so a weight is the scale times a whole number of 8 bits.
With 4 bits, 32 columns of a row form a group that uses 16 points of the grid: code u stands for
``step * (u - origin)``. The native quantizer (``csrc/kernels/gemm_grid_quantize.cpp``) computes
the same floats in the same order; this one is its oracle, and the reference backend's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.quant.errors import not_finite
from penstock.quant.scheme import GRID_GROUP, GridScheme

F32 = NDArray[np.float32]

WINDOW_REACH = np.float32(120)
"""A row's largest magnitude in 4 bits, in points of the grid: 8 of the largest steps."""


@dataclass(frozen=True)
class GridTensor:
    """An ``[n, k]`` matrix on the grid.

    codes int8 ``[n, k]``: points -127..127, or with 4 bits u, 0..15; windows uint8
    ``[n, ceil(k / 32)]``, ``step - 1 + 16 * origin`` with step 1..16 and origin 0..15, and of no
    columns with 8 bits; scales float32 ``[n]``.
    """

    scheme: GridScheme
    codes: NDArray[np.int8]
    windows: NDArray[np.uint8]
    scales: F32

    @property
    def shape(self) -> tuple[int, int]:
        n, k = self.codes.shape
        return n, k

    def points(self) -> NDArray[np.int32]:
        """The grid's integers that the codes stand for, ``[n, k]``."""
        codes = self.codes.astype(np.int32)
        if self.scheme.bits == 8:
            return codes
        k = self.codes.shape[1]
        steps = np.repeat(self.windows % 16, GRID_GROUP, axis=1)[:, :k].astype(np.int32) + 1
        origins = np.repeat(self.windows // 16, GRID_GROUP, axis=1)[:, :k].astype(np.int32)
        return steps * (codes - origins)

    def dequantize(self) -> F32:
        """The float32 matrix that the codes stand for, ``[n, k]``."""
        return self.points().astype(np.float32) * self.scales[:, None]


def quantize_to_grid(
    matrix: NDArray[Any], scheme: GridScheme, name: str = "a matrix"
) -> GridTensor:
    """Round ``matrix`` ``[n, k]``, of any floating type; ties go to even.

    8 bits: scale = max|w| / 127. 4 bits: scale = max|w| / 120; of a group's 16 codes 8 lie on the
    side of its value of largest magnitude, which becomes the outermost, and 7 on the other. A row
    of zeros has scale 0, and so has one whose scale would not be a normal number.

    Raises WeightError, naming ``name``, if a value is not finite.
    """
    x = matrix.astype(np.float32)
    n, k = x.shape
    if not np.isfinite(x).all():
        raise not_finite(name)
    most = np.abs(x).max(axis=1, initial=0)
    scales = most / (np.float32(127) if scheme.bits == 8 else WINDOW_REACH)
    scales[scales < np.finfo(np.float32).tiny] = 0
    on_grid = np.divide(x, scales[:, None], out=np.zeros_like(x), where=scales[:, None] > 0)
    if scheme.bits == 8:
        codes = np.clip(np.rint(on_grid), -127, 127).astype(np.int8)
        return GridTensor(scheme, codes, np.empty((n, 0), np.uint8), scales)
    padded = np.zeros((n, -(-k // GRID_GROUP) * GRID_GROUP), np.float32)
    padded[:, :k] = on_grid
    codes, windows = _fit(padded.reshape(n, -1, GRID_GROUP))
    nil = scales == 0
    codes[nil], windows[nil] = 0, 0
    return GridTensor(scheme, np.ascontiguousarray(codes.reshape(n, -1)[:, :k]), windows, scales)


def _fit(x: F32) -> tuple[NDArray[np.int8], NDArray[np.uint8]]:
    """Codes ``[n, groups, 32]`` and windows ``[n, groups]`` of points ``[n, groups, 32]``."""
    low, high = x.min(axis=2), x.max(axis=2)
    up = high > -low
    step = np.clip(np.ceil(np.where(up, high, -low) / np.float32(8)), 1, 15)
    origin = np.where(up, np.float32(7), np.float32(8))
    codes = np.clip(np.rint(x / step[:, :, None]) + origin[:, :, None], 0, 15)
    return codes.astype(np.int8), (step - 1 + 16 * origin).astype(np.uint8)
