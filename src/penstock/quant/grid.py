"""Rounding to a row's 8-bit grid, and to windows of 4 bits on it.

The rows of a matrix have one scale each, so a weight is the scale times a whole number of 8 bits.
With 4 bits, groups of columns use 16 points of the grid each: code u stands for
``step * (u - origin)``. The native quantizer (``csrc/kernels/gemm_grid_quantize.cpp``) computes
the same floats in the same order; this one is its oracle, and the reference backend's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.quant.errors import not_finite
from penstock.quant.hadamard import restore_weights, transform_weights
from penstock.quant.scheme import GridScheme

F32 = NDArray[np.float32]

LARGEST_STEP = 16
ORIGINS = (1, 14)
"""The least and the greatest origin that a window is given: 0 is inside of it."""

_CHUNK = 1 << 20
"""Number of elements whose windows are chosen at a time."""


@dataclass(frozen=True)
class GridTensor:
    """An ``[n, k]`` matrix on the grid.

    codes int8 ``[n, k]``: points -127..127, or with 4 bits u, 0..15; windows uint8
    ``[n, ceil(k / scheme.columns)]``, ``step - 1 + 16 * origin`` with step 1..16 and origin 0..15,
    and of no columns with 8 bits; scales float32 ``[n]``. ``transformed``: the codes are of the
    Hadamard transform (:mod:`penstock.quant.hadamard`) of rows, which transformed rows multiply.
    """

    scheme: GridScheme
    codes: NDArray[np.int8]
    windows: NDArray[np.uint8]
    scales: F32
    transformed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        n, k = self.codes.shape
        return n, k

    def points(self) -> NDArray[np.int32]:
        """The grid's integers that the codes stand for, ``[n, k]``."""
        codes = self.codes.astype(np.int32)
        if self.scheme.bits == 8:
            return codes
        k, size = self.codes.shape[1], self.scheme.columns
        steps = np.repeat(self.windows % 16, size, axis=1)[:, :k].astype(np.int32) + 1
        origins = np.repeat(self.windows // 16, size, axis=1)[:, :k].astype(np.int32)
        return steps * (codes - origins)

    def dequantize(self) -> F32:
        """The float32 matrix that the codes stand for, ``[n, k]``."""
        values: F32 = self.points().astype(np.float32) * self.scales[:, None]
        return restore_weights(values) if self.transformed else values


def quantize_to_grid(
    matrix: NDArray[Any], scheme: GridScheme, name: str = "a matrix", *, transformed: bool = False
) -> GridTensor:
    """Round ``matrix`` ``[n, k]``, of any floating type, or its rows' transform; ties go to even.

    scale = max|w| / 127. A row of zeros has scale 0, and so has one whose scale would not be a
    normal number. 4 bits: a group has, of nine windows, that of the least squared error, the first
    of equals. With low <= 0 <= high its least and greatest value in points of the grid, origins are
    ``-low * 15 / (high - low)``, rounded to nearest, less 1, itself and 1 more, within 1..14; for
    each of them steps are the least that reaches low and high, within 1..16, and that less 1 and
    less 2, at least 1. Codes are ``value / step`` rounded to nearest, plus the origin, as far as
    they are codes and their points lie in -128..127.

    Raises WeightError, naming ``name``, if a value is not finite, or if its transform is not.
    """
    x = matrix.astype(np.float32)
    if transformed:
        x = transform_weights(x)
    n, k = x.shape
    if not np.isfinite(x).all():
        raise not_finite(name)
    most = np.abs(x).max(axis=1, initial=0)
    scales = most / np.float32(127)
    scales[scales < np.finfo(np.float32).tiny] = 0
    on_grid = np.divide(x, scales[:, None], out=np.zeros_like(x), where=scales[:, None] > 0)
    if scheme.bits == 8:
        codes = np.clip(np.rint(on_grid), -127, 127).astype(np.int8)
        return GridTensor(scheme, codes, np.empty((n, 0), np.uint8), scales, transformed)
    size = scheme.columns
    groups = -(-k // size)
    padded = np.zeros((n, groups * size), np.float32)
    padded[:, :k] = on_grid
    codes = np.empty((n, groups, size), np.int8)
    windows = np.empty((n, groups), np.uint8)
    rows = max(1, _CHUNK // max(k, 1))
    for first in range(0, n, rows):
        some = slice(first, first + rows)
        codes[some], windows[some] = _fit(padded[some].reshape(-1, groups, size))
    nil = scales == 0
    codes[nil], windows[nil] = 0, 0
    narrow = np.ascontiguousarray(codes.reshape(n, -1)[:, :k])
    return GridTensor(scheme, narrow, windows, scales, transformed)


def _fit(x: F32) -> tuple[NDArray[np.int8], NDArray[np.uint8]]:
    """Codes ``[n, groups, size]`` and windows ``[n, groups]`` of points ``[n, groups, size]``."""
    low, high = np.minimum(x.min(axis=2), 0), np.maximum(x.max(axis=2), 0)
    span = high - low
    middle = np.rint(np.divide(-low * np.float32(15), span, out=span * 0 + 8, where=span > 0))
    least = np.full(low.shape, np.inf, np.float32)
    codes, windows = np.zeros(x.shape, np.int8), np.zeros(low.shape, np.uint8)
    for further in (-1, 0, 1):
        origin = np.clip(middle + np.float32(further), *ORIGINS).astype(np.float32)
        reaching = np.maximum(-low / origin, high / (15 - origin))
        cover = np.clip(np.ceil(reaching), 1, LARGEST_STEP)
        for finer in (0, 1, 2):
            step = np.maximum(cover - np.float32(finer), 1).astype(np.float32)
            u, error = _codes(x, step, origin)
            better = error < least
            least = np.where(better, error, least)
            codes = np.where(better[:, :, None], u, codes)
            windows = np.where(better, (step - 1 + 16 * origin).astype(np.uint8), windows)
    return codes, windows


def _codes(x: F32, step: F32, origin: F32) -> tuple[NDArray[np.int8], F32]:
    """Codes of points by one window a group, and the sums of their squared errors."""
    first = np.maximum(-origin, -np.floor(128 / step)).astype(np.float32)[:, :, None]
    last = np.minimum(15 - origin, np.floor(127 / step)).astype(np.float32)[:, :, None]
    by = (np.float32(1) / step)[:, :, None]
    rounded = np.clip(np.rint(x * by), first, last)
    error = np.square(x - rounded * step[:, :, None])
    while error.shape[2] > 1:
        half = error.shape[2] // 2
        error = error[:, :, :half] + error[:, :, half:]
    return (rounded + origin[:, :, None]).astype(np.int8), error[:, :, 0]
