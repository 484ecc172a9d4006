"""Rounding to nearest: from a floating-point matrix to codes and scales, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.quant.errors import not_finite
from penstock.quant.scheme import GroupScheme

F32 = NDArray[np.float32]

_CHUNK = 1 << 18
"""Number of elements quantized at a time, so that the passes over them run in cache."""


@dataclass(frozen=True)
class GroupTensor:
    """An ``[n, k]`` matrix as ``(code - zero) * scale``, zero and scale of each code's group.

    codes int8 ``[n, k]``, 4-bit ones too; scales float32 ``[n, groups]``; zeros int8
    ``[n, groups]``, in the codes' range or with 4 bits 8, None where the scheme has no zero points
    and zero is 0. Group g of a row is its columns from ``g * group_size`` to
    ``(g + 1) * group_size``, or to k if that is less.

    order int32 ``[k]``: column j is that of the matrix's column ``order[j]``, so that columns of a
    group need not be neighbours in the matrix; None: it is that of column j.
    """

    scheme: GroupScheme
    codes: NDArray[np.int8]
    scales: F32
    zeros: NDArray[np.int8] | None = None
    order: NDArray[np.int32] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        n, k = self.codes.shape
        return n, k

    def rows(self, *runs: tuple[int, int]) -> GroupTensor:
        """The matrix of the rows of ``runs`` (first, end), one after another; of one run, views."""

        def taken(array: NDArray[Any]) -> NDArray[Any]:
            if len(runs) == 1:
                return array[slice(*runs[0])]
            return np.concatenate([array[first:end] for first, end in runs])

        zeros = None if self.zeros is None else taken(self.zeros)
        codes, scales = taken(self.codes), taken(self.scales)
        return GroupTensor(self.scheme, codes, scales, zeros, self.order)

    def taken(self, rows: NDArray[np.integer]) -> GroupTensor:
        """The matrix of those rows, in that order."""
        zeros = None if self.zeros is None else self.zeros[rows]
        return GroupTensor(self.scheme, self.codes[rows], self.scales[rows], zeros, self.order)

    def points(self) -> NDArray[np.int32]:
        """The integers that scales multiply, ``code - zero``, ``[n, k]``, in the codes' order."""
        codes = self.codes.astype(np.int32)
        return codes if self.zeros is None else codes - self._spread(self.zeros)

    def dequantize(self) -> F32:
        """The float32 matrix that the codes stand for, ``[n, k]``."""
        values: F32 = self.points().astype(np.float32) * self._spread(self.scales)
        if self.order is None:
            return values
        result = np.empty_like(values)
        result[:, self.order] = values
        return result

    def _spread(self, of_groups: NDArray[Any]) -> NDArray[Any]:
        """A value of each group ``[n, groups]`` for each of its columns, ``[n, k]``."""
        k = self.codes.shape[1]
        size = self.scheme.group_size or max(k, 1)
        return np.repeat(of_groups, size, axis=1)[:, :k]


def quantize(matrix: NDArray[Any], scheme: GroupScheme, name: str = "a matrix") -> GroupTensor:
    """Round ``matrix`` ``[n, k]``, of any floating type, to the nearest codes, ties to even.

    8 bits: scale = max|w| / 127, so every error is at most half a scale. 4 bits: the value of
    largest magnitude becomes -8 and scale = -value / 8, which uses all sixteen codes; errors are
    at most half a scale, and up to a whole one for values of the other sign near that magnitude,
    whose +8 does not exist. A group of zeros has scale +0.

    With zero points, 0 and all of the group lie between the least and the greatest code: with
    ``low = min(0, least value)`` and ``high = max(0, greatest)``, scale = (high - low) divided by
    the number of codes less one, zero = lowest - low / scale, rounded; codes = value / scale,
    rounded, + zero. A group of zeros has scale and zero 0.

    Raises WeightError, naming ``name``, if a value is not finite.
    """
    n, k = matrix.shape
    codes = np.empty((n, k), np.int8)
    scales = np.empty((n, scheme.groups(k)), np.float32)
    zeros = np.zeros(scales.shape, np.int8)
    rows = max(1, _CHUNK // max(k, 1))
    for first in range(0, n, rows):
        some = slice(first, first + rows)
        x = matrix[some].astype(np.float32)
        _quantize_rows(x, scheme, codes[some], scales[some], zeros[some])
    require_finite(scales, name)
    return GroupTensor(scheme, codes, scales, zeros if scheme.zero_points else None)


def require_finite(scales: F32, name: str) -> None:
    """Raise WeightError, naming ``name``, if a scale is not: then a value was not."""
    if not np.isfinite(scales).all():
        raise not_finite(name)


def require_in_order(tensor: GroupTensor, name: str) -> GroupTensor:
    """Return ``tensor``; raise WeightError, naming ``name``, if its columns have another order."""
    if tensor.order is not None:
        raise WeightError(
            f"{name} groups columns by their activations (g_idx), which this backend does not "
            "multiply by, and the cpu backend only where quantization_config says desc_act true; "
            "correct that, take a checkpoint that was quantized with desc_act false or "
            "static_groups true, or choose the slow --backend reference"
        )
    return tensor


def _quantize_rows(
    x: F32,
    scheme: GroupScheme,
    codes: NDArray[np.int8],
    scales: F32,
    zeros: NDArray[np.int8],
) -> None:
    k = x.shape[1]
    size = scheme.group_size or max(k, 1)
    whole = k // size * size
    for columns, groups in (
        (slice(0, whole), slice(0, whole // size)),
        (slice(whole, k), slice(whole // size, None)),
    ):
        part = x[:, columns]
        if part.shape[1]:
            grouped = part.reshape(len(x), -1, min(size, part.shape[1]))
            if scheme.zero_points:
                codes[:, columns], scales[:, groups], zeros[:, groups] = _span(grouped, scheme)
            else:
                codes[:, columns], scales[:, groups] = _quantize_groups(grouped, scheme)


def _span(x: F32, scheme: GroupScheme) -> tuple[NDArray[np.int8], F32, NDArray[np.int8]]:
    """Codes, scales and zeros of groups ``[rows, groups, size]``, as :func:`quantize` spans them.

    Codes come as ``[rows, groups * size]``.
    """
    low, high = np.minimum(x.min(axis=2), 0), np.maximum(x.max(axis=2), 0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scales = (high - low) / np.float32(scheme.highest - scheme.lowest)
        usable = scales > 0
        divisor = np.where(usable, scales, np.float32(1))
        zeros = np.clip(
            np.rint(np.float32(scheme.lowest) - low / divisor), scheme.lowest, scheme.highest
        )
        zeros = np.where(usable, zeros, np.float32(0))
        rounded = np.rint(x / divisor[:, :, None]) + zeros[:, :, None]
        np.nan_to_num(rounded, copy=False, nan=0.0)
        np.clip(rounded, scheme.lowest, scheme.highest, out=rounded)
        codes = np.where(usable[:, :, None], rounded, np.float32(0)).astype(np.int8)
        return codes.reshape(len(x), -1), scales, np.nan_to_num(zeros).astype(np.int8)


def _quantize_groups(x: F32, scheme: GroupScheme) -> tuple[NDArray[np.int8], F32]:
    """x ``[rows, groups, size]`` to codes ``[rows, groups * size]``, scales ``[rows, groups]``."""
    high, low = x.max(axis=2), x.min(axis=2)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if scheme.bits == 8:
            scales = np.maximum(high, -low) / np.float32(127)
        else:
            scales = np.where(high > -low, high, low) / np.float32(-8)
        # A group of zeros gives 0 / 0; codes of values that are not finite are never used.
        rounded = np.rint(np.divide(x, scales[:, :, None]))
        np.nan_to_num(rounded, copy=False, nan=0.0)
        np.clip(rounded, scheme.lowest, scheme.highest, out=rounded)
        # Adding zero makes -0, of which the order of comparisons decides, +0.
        return rounded.astype(np.int8).reshape(len(x), -1), scales + np.float32(0)
