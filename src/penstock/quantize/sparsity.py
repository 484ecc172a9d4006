"""2:4 sparsity: two of each four weights of a row become 0, and units that multiply such matrices
skip them.

By magnitude, or as SparseGPT does it: Frantar and Alistarh, SparseGPT: Massive Language Models Can
Be Accurately Pruned in One-Shot, 2023 (arXiv 2301.00774). Columns are processed as in GPTQ
(``gptq.py``). Of each four weights the two with the least saliency ``w**2 / U[j, j]**2``, the error
of the outputs that pruning leaves, become 0, and later columns compensate. The weights that are
kept may be quantized in the same pass.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.models.sparse24 import KEPT, OF
from penstock.models.spec import DType
from penstock.quantize.gptq import inverse_factor
from penstock.quantize.grid import F32, IntegerGrid, IntegerMatrix
from penstock.quantize.spans import column_fit
from penstock.weights.tensor_file import NUMPY_DTYPES

_BLOCK: Final = 128
"""Columns after which the errors reach those of later blocks: whole fours."""


def by_magnitude(matrix: F32) -> NDArray[np.bool_]:
    """Whether each weight of ``[n, k]`` is one of the two largest of its four; of equal ones, the
    first."""
    n, k = matrix.shape
    return _largest(np.abs(matrix).reshape(n, k // OF, OF), 2).reshape(n, k)


def _largest(scores: F32, axis: int) -> NDArray[np.bool_]:
    order = np.argsort(-scores, axis=axis, kind="stable")
    kept = np.zeros(scores.shape, np.bool_)
    np.put_along_axis(kept, np.take(order, range(KEPT), axis=axis), True, axis=axis)
    return kept


def _kept(weights: F32, lost: F32) -> NDArray[np.bool_]:
    """Whether each weight of ``[..., 4, n]`` is one of the two of its four with the larger
    saliency, ``weights**2 * lost``."""
    return _largest(np.square(weights) * lost, -2)


class Columns(Protocol):
    """What columns become, one after another."""

    def begin(self, column: int, ahead: F32, lost: F32) -> None:
        """A group begins with the column, whose weights and those behind it are ``ahead``
        ``[columns, n]`` now; the square of an error of one of them loses ``lost`` ``[columns]``
        times that."""
        ...

    @property
    def group(self) -> int | None:
        """Columns that share something; None: none do."""
        ...

    def put(self, column: int, values: F32) -> F32:
        """Round the weights ``[n]`` of a column, 0 to 0; what they are then."""
        ...


class FloatColumns:
    """Columns in a type of floats."""

    group = None

    def __init__(self, shape: tuple[int, int], dtype: DType) -> None:
        self.matrix: F32 = np.empty(shape, np.float32)
        self._dtype = NUMPY_DTYPES[dtype]

    def begin(self, column: int, ahead: F32, lost: F32) -> None:
        raise NotImplementedError

    def put(self, column: int, values: F32) -> F32:
        rounded: F32 = values.astype(self._dtype).astype(np.float32)
        self.matrix[:, column] = rounded
        return rounded


class CodeColumns:
    """Columns of integer codes. The scale of a group is chosen at its first column, for those of
    its weights that would be kept by their values at that time, and clipped as they lose least
    (``spans.py``)."""

    def __init__(self, shape: tuple[int, int], grid: IntegerGrid) -> None:
        n, k = shape
        self._grid = grid
        self.group: int | None = k // grid.groups(k)
        self._codes = np.empty(shape, np.uint8)
        self._scales = np.empty((n, grid.groups(k)), np.float32)
        self._zeros = np.empty((n, grid.groups(k)), np.int32)

    def begin(self, column: int, ahead: F32, lost: F32) -> None:
        assert self.group is not None
        place = column // self.group
        fours = ahead.reshape(-1, OF, ahead.shape[1])
        kept = _kept(fours, lost.reshape(-1, OF, 1)).reshape(ahead.shape)
        weights = np.where(kept, ahead, np.float32(0)).T[:, None]
        fit = column_fit(weights, self._grid, lost[None])
        self._scales[:, place], self._zeros[:, place] = (each[:, 0] for each in fit)

    def put(self, column: int, values: F32) -> F32:
        assert self.group is not None
        place = column // self.group
        scales, zeros = self._scales[:, place], self._zeros[:, place]
        codes = self._grid.round(values, scales, zeros)
        self._codes[:, column] = codes
        rounded: F32 = (codes - zeros).astype(np.float32) * scales
        return rounded

    @property
    def matrix(self) -> IntegerMatrix:
        return IntegerMatrix(self._grid, self._codes, self._scales, self._zeros)


def sparsegpt(matrix: F32, hessian: F32, columns: Columns, damping: float, name: str) -> None:
    """Put the columns of ``matrix`` ``[n, k]``, whole fours, with two of each four weights 0;
    ``hessian`` ``[k, k]``.

    ``damping`` and errors are those of :func:`~penstock.quantize.gptq.gptq`.
    """
    n, k = matrix.shape
    idle = np.diagonal(hessian) == 0
    upper = inverse_factor(hessian, np.arange(k), idle, damping, name)
    lost: F32 = np.reciprocal(np.square(np.diagonal(upper)))
    left: F32 = np.ascontiguousarray(np.where(idle, np.float32(0), matrix).T)
    kept = np.empty((OF, n), np.bool_)
    for first in range(0, k, _BLOCK):
        end = min(first + _BLOCK, k)
        errors = np.empty((end - first, n), np.float32)
        for i in range(first, end):
            if columns.group is not None and i % columns.group == 0:
                ahead = left[i : i + columns.group].copy()
                if i + columns.group > end:  # which the errors of this block have not reached
                    behind = upper[first:i, end : i + columns.group]
                    ahead[end - i :] -= behind.T @ errors[: i - first]
                columns.begin(i, ahead, lost[i : i + columns.group])
            if i % OF == 0:
                kept = _kept(left[i : i + OF], lost[i : i + OF, None])
            column = np.where(kept[i % OF], left[i], np.float32(0))
            errors[i - first] = (left[i] - columns.put(i, column)) / upper[i, i]
            left[i + 1 : end] -= np.multiply.outer(upper[i, i + 1 : end], errors[i - first])
        left[end:] -= upper[first:end, end:].T @ errors
