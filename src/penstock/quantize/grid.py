"""Grids of integers, and matrices rounded to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.models.spec import DType
from penstock.weights.tensor_file import NUMPY_DTYPES

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class IntegerGrid:
    """The integers that weights become, ``(code - zero) * scale``, and which of them share a scale
    and the code that stands for 0.

    Codes are from 0 to ``2**bits - 1``. A symmetric grid has the middle one for 0.
    """

    bits: int
    """2, 3, 4 or 8."""
    group_size: int | None
    """Columns that share a scale; None: a whole row."""
    symmetric: bool
    scale_dtype: DType
    """The type in which scales are stored: codes are those of the scales as they are read."""

    @property
    def highest(self) -> int:
        """The greatest code."""
        return (1 << self.bits) - 1

    @property
    def middle(self) -> int:
        return 1 << (self.bits - 1)

    def groups(self, columns: int) -> int:
        """Number of groups in a row. Raises ValueError where they do not divide it."""
        size = self.group_size or columns
        if columns % size:
            raise ValueError(f"{columns} columns are no whole groups of {size}")
        return columns // size

    def grouped(self, matrix: F32) -> F32:
        """A matrix ``[n, k]`` as ``[n, groups, columns of a group]``."""
        n, k = matrix.shape
        return matrix.reshape(n, self.groups(k), -1)

    def matrix(self, grouped: F32, scales: F32, zeros: NDArray[np.int32]) -> IntegerMatrix:
        """The nearest codes of groups ``[n, groups, columns]`` with these scales and zeros."""
        codes = self.round(grouped, scales[..., None], zeros[..., None])
        return IntegerMatrix(self, codes.reshape(len(grouped), -1), scales, zeros)

    def fit(self, values: F32) -> tuple[F32, NDArray[np.int32]]:
        """The scales and zeros ``[...]`` of groups ``[..., columns]`` that span their values.

        Symmetric, the largest magnitude is ``2**bits - 1`` half steps from 0, so the highest code
        may be half a step short of it; else the codes reach from the least value, or 0, to the
        greatest, or 0. These are the rules of compressed-tensors and of GPTQ. A group of zeros has
        scale 1.
        """
        if self.symmetric:
            spans = 2 * np.abs(values).max(axis=-1)
            least = np.zeros_like(spans)
        else:
            least = np.minimum(values.min(axis=-1), 0)
            spans = np.maximum(values.max(axis=-1), 0) - least
        scales = self._stored(spans / np.float32(self.highest), spans == 0)
        if self.symmetric:
            return scales, np.full(scales.shape, self.middle, np.int32)
        zeros = np.clip(np.rint(-least / scales), 0, self.highest).astype(np.int32)
        return scales, zeros

    def _stored(self, scales: F32, nil: NDArray[np.bool_]) -> F32:
        """Scales as they are read again; the smallest that there is in the place of 0."""
        dtype = NUMPY_DTYPES[self.scale_dtype]
        with np.errstate(over="ignore"):
            stored = scales.astype(dtype)
        kept = np.maximum(stored.astype(np.float32), smallest(dtype).astype(np.float32))
        return np.where(nil, np.float32(1), kept)

    def round(self, values: F32, scales: F32, zeros: NDArray[np.int32]) -> NDArray[np.uint8]:
        """The nearest codes, ties to even; arrays of shapes that broadcast."""
        codes = np.rint(values / scales) + zeros
        kept: NDArray[np.uint8] = np.clip(codes, 0, self.highest).astype(np.uint8)
        return kept

    def nearest(self, groups: F32, scales: F32, zeros: NDArray[np.int32]) -> F32:
        """The points nearest to the values of groups ``[..., columns]``."""
        codes = self.round(groups, scales[..., None], zeros[..., None])
        points = codes.astype(np.int32) - zeros[..., None]
        return points.astype(np.float32) * scales[..., None]


@dataclass(frozen=True)
class IntegerMatrix:
    """A matrix ``[n, k]`` of a grid's codes.

    codes uint8 ``[n, k]``, scales float32 and zeros int32 ``[n, groups]``. ``group_of``, int32
    ``[k]``, is the group of each column, where groups are not of neighbours.
    """

    grid: IntegerGrid
    codes: NDArray[np.uint8]
    scales: F32
    zeros: NDArray[np.int32]
    group_of: NDArray[np.int32] | None = None

    def dequantize(self) -> F32:
        """What the codes stand for, ``[n, k]``."""
        points = self.codes.astype(np.int32) - self._of_columns(self.zeros)
        values: F32 = points.astype(np.float32) * self._of_columns(self.scales)
        return values

    @property
    def has_finite_scales(self) -> bool:
        """Whether no scale is too large for its type."""
        return bool(np.isfinite(self.scales).all())

    def _of_columns(self, of_groups: NDArray[Any]) -> NDArray[Any]:
        if self.group_of is not None:
            return of_groups[:, self.group_of]
        return np.repeat(of_groups, self.codes.shape[1] // of_groups.shape[1], axis=1)


def smallest(dtype: np.dtype[Any]) -> Any:
    """The smallest number above 0 of a type of floats: what a scale that would be 0 becomes."""
    return np.array([1]).astype(f"u{dtype.itemsize}").view(dtype)[0]


def require_finite(matrix: F32, name: str) -> None:
    """Raise WeightError, naming the matrix, where a value is not finite."""
    if not np.isfinite(matrix).all():
        raise WeightError(
            f"{name} has values that are not finite, which nothing rounds; take the checkpoint "
            "from the original again"
        )
