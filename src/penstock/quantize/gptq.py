"""GPTQ: a matrix is rounded column by column, and later columns compensate for the errors.

Frantar et al., GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers,
2022 (arXiv 2210.17323). H is the Hessian of the squared error of the outputs (``hessian.py``), and
U its upper triangular factor, ``inv(H) = U.T @ U``. With e the rounding error of column i,
``e / U[i, i] * U[i, j]`` is subtracted from each later column j: the update that leaves the least
squared error of the outputs, ``(e / U[i, i])**2``. The same losses choose how far each group is
clipped (``spans.py``), which the paper does not do: unclipped, a few large weights make the steps
of a whole group coarse.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.quantize.grid import F32, IntegerGrid, IntegerMatrix
from penstock.quantize.spans import column_fit

Order = Literal["static", "group", "none"]
"""The order in which columns are rounded (``act_order``). "static" and "group" begin with the
columns that have the largest inputs. "static" keeps groups of adjacent columns, whose scales are
computed before anything is rounded; "group" makes groups of columns in that order, so that a
checkpoint needs an index (``g_idx``). "none": from the first column to the last."""

_BLOCK: Final = 128
"""Columns of a block: the errors of a whole block are passed to later columns in one product."""
_LEAF: Final = 64
"""Triangles of at most so many rows are inverted directly."""
_TRIES: Final = 4


def gptq(
    matrix: F32, hessian: F32, grid: IntegerGrid, order: Order, damping: float, name: str
) -> IntegerMatrix:
    """Round ``matrix`` ``[n, k]``; ``hessian`` ``[k, k]``.

    ``damping`` times the mean of the Hessian's diagonal is added to that. Columns whose inputs are
    all zeros become zeros. Raises WeightError, naming the matrix, where even the damped Hessian is
    not positive definite.
    """
    n, k = matrix.shape
    groups = grid.groups(k)
    size = k // groups
    diagonal = np.diagonal(hessian)
    idle = diagonal == 0
    weights = np.where(idle, np.float32(0), matrix)
    places: NDArray[np.intp] = np.arange(k)
    if order != "none":
        places = np.argsort(-diagonal, kind="stable")
    # Transposed, so that what is done to a column is done to neighbours in memory.
    left: F32 = np.ascontiguousarray(weights.T[places])
    upper = inverse_factor(hessian, places, idle, damping, name)
    codes = np.empty((k, n), np.uint8)
    scales = np.empty((n, groups), np.float32)
    zeros = np.empty((n, groups), np.int32)
    lost: F32 = np.reciprocal(np.square(np.diagonal(upper)))
    if order == "static":
        # Columns change before they are rounded, which is not known yet.
        of_columns = np.empty_like(lost)
        of_columns[places] = lost
        fit = column_fit(weights.reshape(n, groups, size), grid, of_columns.reshape(groups, size))
        scales[:], zeros[:] = fit
    for first in range(0, k, _BLOCK):
        end = min(first + _BLOCK, k)
        errors = np.empty((end - first, n), np.float32)
        for i in range(first, end):
            if order == "static":
                group = int(places[i]) // size
            else:
                group = i // size
                if i % size == 0:
                    # The errors of this block have not reached columns behind it yet.
                    ahead = left[i : i + size].copy()
                    if i + size > end:
                        ahead[end - i :] -= upper[first:i, end : i + size].T @ errors[: i - first]
                    fit = column_fit(ahead.T[:, None], grid, lost[None, i : i + size])
                    scales[:, group], zeros[:, group] = (each[:, 0] for each in fit)
            column, scale, zero = left[i], scales[:, group], zeros[:, group]
            codes[places[i]] = rounded = grid.round(column, scale, zero)
            error = (column - (rounded - zero).astype(np.float32) * scale) / upper[i, i]
            left[i + 1 : end] -= np.multiply.outer(upper[i, i + 1 : end], error)
            errors[i - first] = error
        left[end:] -= upper[first:end, end:].T @ errors
    group_of = None
    if order == "group" and grid.group_size is not None:
        group_of = np.empty(k, np.int32)
        group_of[places] = np.arange(k, dtype=np.int32) // size
    return IntegerMatrix(grid, np.ascontiguousarray(codes.T), scales, zeros, group_of)


def inverse_factor(
    hessian: F32, places: NDArray[np.intp], idle: NDArray[np.bool_], damping: float, name: str
) -> F32:
    """The upper triangle U of which ``U.T @ U`` is the inverse of the damped Hessian, its rows and
    columns in the order of ``places``."""
    mean = float(np.diagonal(hessian).mean(dtype=np.float64)) or 1.0
    for attempt in range(_TRIES):
        # Backwards: H = R @ R.T with R upper is what Cholesky's factor L is of H turned around,
        # and then U is the inverse of R.
        turned = hessian[np.ix_(places[::-1], places[::-1])]
        diagonal = np.einsum("ii->i", turned)
        diagonal += np.where(idle[places[::-1]], np.float32(mean), np.float32(0))
        diagonal += np.float32(damping * 10**attempt * mean)
        try:
            lower = np.linalg.cholesky(turned)
        except np.linalg.LinAlgError:
            continue
        return np.ascontiguousarray(_inverse_lower(lower)[::-1, ::-1])
    raise WeightError(
        f"the Hessian of {name} has no inverse, though its diagonal is damped by "
        f"{damping * 10 ** (_TRIES - 1):g} of its mean; calibrate with more text, or with more "
        "--damping"
    )


def _inverse_lower(lower: F32) -> F32:
    """The inverse of a lower triangle, by halves: most of it are products of matrices."""
    size = len(lower)
    if size <= _LEAF:
        return np.tril(np.linalg.inv(lower))
    half = size // 2
    result = np.zeros_like(lower)
    result[:half, :half] = _inverse_lower(lower[:half, :half])
    result[half:, half:] = _inverse_lower(lower[half:, half:])
    result[half:, :half] = -(result[half:, half:] @ lower[half:, :half]) @ result[:half, :half]
    return result
