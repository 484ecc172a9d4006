"""SmoothQuant: outlier channels of the activations are scaled down, and the matrix's columns up.

Xiao et al., SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language
Models, 2022 (arXiv 2211.10438). Activations are quantized as well, with a scale per token, so a
channel tens of times as large as the others leaves them few codes. Each channel is divided by
``max|x|**a / max|w|**(1 - a)``, and the matrix's column multiplied by it. The power ``a`` is
searched for by the squared error of the outputs of some tokens, with both sides quantized.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from penstock.quantize.grid import F32, IntegerGrid
from penstock.quantize.hessian import Hessian

POWERS: Final = tuple(step / 20 for step in range(21))
_ROWS: Final = 512
"""Rows of each matrix, evenly apart, by whose errors the power is chosen."""
_LEAST: Final = np.float32(1e-5)
"""Lower bound of a column's largest magnitude, as a fraction of the greatest of all columns, so
that columns of zeros get finite factors."""


def smoothing_factors(matrices: Sequence[F32], grid: IntegerGrid, hessian: Hessian) -> F32 | None:
    """The factors ``[k]`` by which to multiply the columns of matrices ``[n, k]`` that share an
    input; None where no factors lose less."""
    joined = np.concatenate([matrix[:: max(1, len(matrix) // _ROWS)] for matrix in matrices])
    rows = hessian.rows
    of_inputs = _sizes(hessian.peaks)
    of_weights = _sizes(np.max([np.abs(matrix).max(axis=0) for matrix in matrices], axis=0))
    if of_inputs is None or of_weights is None:
        return None
    exact = rows @ joined.T
    found: F32 | None = None
    smallest = _loss(rows, joined, grid, exact)
    for power in POWERS:
        factors: F32 = of_inputs ** np.float32(power) / of_weights ** np.float32(1 - power)
        factors /= np.sqrt(factors.max()) * np.sqrt(factors.min())  # their product may underflow
        loss = _loss(rows / factors, joined * factors, grid, exact)
        if loss < smallest:
            found, smallest = factors, loss
    return found


def _sizes(largest: F32) -> F32 | None:
    """The largest magnitudes of columns with their lower bound; None where all are 0."""
    most = largest.max(initial=0)
    return np.maximum(largest, most * _LEAST) if most > 0 else None


def _loss(rows: F32, matrix: F32, grid: IntegerGrid, exact: F32) -> float:
    """The squared error of products of quantized rows with a quantized matrix."""
    scales, zeros = grid.fit(matrix)
    rounded = grid.nearest(matrix, scales, zeros)
    return float(np.square(_by_tokens(rows) @ rounded.T - exact).sum())


def _by_tokens(rows: F32) -> F32:
    """Rows quantized to 8 bits, with a scale per token."""
    scales = np.abs(rows).max(axis=1, keepdims=True) / np.float32(127)
    scales = np.where(scales > 0, scales, np.float32(1))
    return np.rint(rows / scales) * scales
