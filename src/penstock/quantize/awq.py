"""AWQ: columns with large inputs are scaled up before rounding, and groups are clipped.

Lin et al., AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration, 2023
(arXiv 2306.00978). Scaling a column up before rounding makes its relative error smaller, as long as
its group's range stays the same. The factors are the RMS of the input's columns to a power, which
is searched for by the squared error of the outputs on all samples, computed from the Hessian. Then
the range of each group is clipped where that lowers the error (``spans.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.quantize.grid import F32, IntegerGrid
from penstock.quantize.hessian import Hessian
from penstock.quantize.spans import searched_fit

POWERS: Final = 20
"""Steps between the powers 0 and 1 that are tried."""
_ROWS: Final = 512
"""Rows of each matrix, evenly apart, by whose errors the power is chosen. More rows hardly change
the choice, and products of all rows would take most of the time."""


def scale_factors(matrices: Sequence[F32], grid: IntegerGrid, hessian: Hessian) -> F32 | None:
    """The factors ``[k]`` by which to multiply the columns of matrices ``[n, k]`` that share an
    input; None where no factors lose less."""
    sums = hessian.sums("a matrix of a layer")
    sizes = np.sqrt(np.diagonal(sums) / max(hessian.tokens, 1))
    least = sizes.max() * np.float32(1e-4)
    if least == 0:
        return None
    some = [matrix[:: max(1, len(matrix) // _ROWS)] for matrix in matrices]
    joined = np.concatenate(some)
    found: F32 | None = None
    smallest = _loss(joined, np.ones_like(sizes), grid, hessian)
    for step in range(1, POWERS + 1):
        factors = np.maximum(sizes, least) ** np.float32(step / POWERS)
        factors /= np.sqrt(factors.max()) * np.sqrt(factors.min())  # their product may underflow
        loss = _loss(joined, factors, grid, hessian)
        if loss < smallest:
            found, smallest = factors, loss
    return found


def _loss(matrix: F32, factors: F32, grid: IntegerGrid, hessian: Hessian) -> float:
    """The squared error of the outputs if columns are multiplied by ``factors``, rounded to
    nearest, and divided by them again."""
    n, k = matrix.shape
    grouped = (matrix * factors).reshape(n, grid.groups(k), -1)
    scales, zeros = grid.fit(grouped)
    rounded = grid.nearest(grouped, scales, zeros).reshape(n, k)
    return hessian.loss(rounded / factors - matrix)


def clipped_fit(grouped: F32, grid: IntegerGrid, hessian: F32) -> tuple[F32, NDArray[np.int32]]:
    """Scales and zero points ``[n, groups]`` of groups ``[n, groups, size]``, each clipped to the
    fraction of its range that loses least by its own diagonal block ``[size, size]`` of the
    Hessian."""
    groups, size = grouped.shape[1:]
    blocks = np.stack(
        [hessian[g * size : (g + 1) * size, g * size : (g + 1) * size] for g in range(groups)]
    )

    def losses(errors: F32) -> F32:
        """``[n, groups]``: the squared error of outputs by each group alone."""
        errors = errors.transpose(1, 0, 2)
        lost: F32 = np.einsum("gns,gns->ng", errors @ blocks, errors)
        return lost

    return searched_fit(grouped, grid, losses)
