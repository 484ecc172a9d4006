"""AWQ: weights that multiply large inputs are rounded with smaller errors.

Lin et al., AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration, 2023
(arXiv 2306.00978). A column that is multiplied by a factor before it is rounded has an error that
is as much smaller, as long as it does not widen what spans its group. Factors are a power of the
inputs' sizes, and the power is searched for, with the squared error of the outputs as it is for all
samples, which the Hessian tells. Then what spans a group is made smaller where the values beyond
lose less than all others gain.
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
"""Powers from 0 to 1 that are tried: steps of a twentieth."""
_ROWS: Final = 512
"""Rows of each matrix whose errors decide the power, evenly apart: more change nothing that
matters, and products of all rows are most of the time."""


def scale_factors(matrices: Sequence[F32], grid: IntegerGrid, hessian: Hessian) -> F32 | None:
    """The factors ``[k]`` of the columns of matrices ``[n, k]`` that multiply the same, with which
    they lose least; None where that is without."""
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
        factors /= np.sqrt(factors.max() * factors.min())
        loss = _loss(joined, factors, grid, hessian)
        if loss < smallest:
            found, smallest = factors, loss
    return found


def _loss(matrix: F32, factors: F32, grid: IntegerGrid, hessian: Hessian) -> float:
    """The squared error of outputs where columns are multiplied by ``factors``, rounded to nearest,
    and divided again."""
    n, k = matrix.shape
    grouped = (matrix * factors).reshape(n, grid.groups(k), -1)
    scales, zeros = grid.fit(grouped)
    rounded = grid.nearest(grouped, scales, zeros).reshape(n, k)
    return hessian.loss(rounded / factors - matrix)


def clipped_fit(grouped: F32, grid: IntegerGrid, hessian: F32) -> tuple[F32, NDArray[np.int32]]:
    """Scales and zeros ``[n, groups]`` of groups ``[n, groups, size]``, each fitted to the part of
    its span with which it loses least, by the block ``[size, size]`` of the Hessian that is its
    own."""
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
