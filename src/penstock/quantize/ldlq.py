"""Block LDLQ: 8 columns are rounded at once, and the columns before them compensate for the error.

Chee et al., QuIP, 2023 (arXiv 2307.13304), and Tseng et al., QuIP#, 2024 (arXiv 2402.04396,
section 4.3). With the Hessian H = L D L.T, where D is of blocks of 8 x 8 and L is a lower triangle
with ones on its diagonal, the squared error of outputs E H E.T is the sum over blocks j of
F[j] D[j] F[j].T, where F = E L. From the last block to the first, F[j] is what rounding a block
adds, once ``E[i] L[i, j]`` of the later blocks i has been added to its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import WeightError
from penstock.quantize.grid import F32

Round = Callable[[F32, int], F32]
"""Given 8 columns ``[n, 8]`` and the number of the block that they are, the points that these
become."""

BLOCK: Final = 8
_LATER: Final = 128
"""Columns whose errors are passed to all earlier columns in one product."""
_TRIES: Final = 4


def ldlq(
    matrix: F32, hessian: NDArray[np.floating], nearest: Round, damping: float, name: str
) -> F32:
    """What ``nearest`` makes of ``matrix`` ``[n, k]``, where k is a multiple of 8.

    ``hessian`` ``[k, k]``, of which ``damping`` times the mean of its diagonal is added to that.
    Its factors are computed in float64, what follows in float32. Raises WeightError, naming the
    matrix, where even the damped Hessian is not positive definite.
    """
    n, k = matrix.shape
    feedback = _below_blocks(hessian, damping, name)
    made, errors = np.empty((n, k), np.float32), np.zeros((n, k), np.float32)
    for first in reversed(range(0, k, _LATER)):
        end = min(first + _LATER, k)
        wanted = matrix[:, first:end] + errors[:, end:] @ feedback[end:, first:end]
        for at in reversed(range(first, end, BLOCK)):
            own, later = slice(at, at + BLOCK), slice(at + BLOCK, end)
            columns = wanted[:, at - first : at - first + BLOCK]
            columns += errors[:, later] @ feedback[later, own]
            made[:, own] = nearest(np.ascontiguousarray(columns), at // BLOCK)
            errors[:, own] = matrix[:, own] - made[:, own]
    return made


def _below_blocks(hessian: NDArray[np.floating], damping: float, name: str) -> F32:
    """L below its blocks of ones on the diagonal."""
    k = len(hessian)
    mean = float(np.diagonal(hessian).mean(dtype=np.float64)) or 1.0
    for attempt in range(_TRIES):
        damped = hessian.astype(np.float64)
        damped[np.diag_indices(k)] += damping * 10**attempt * mean
        try:
            lower = np.linalg.cholesky(damped)
        except np.linalg.LinAlgError:
            continue
        found = np.empty((k, k), np.float32)
        for at in range(0, k, BLOCK):
            own = slice(at, at + BLOCK)
            found[:, own] = np.linalg.solve(lower[own, own].T, lower[:, own].T).T
        return found
    raise WeightError(
        f"the Hessian of {name} has no inverse, though its diagonal is damped by "
        f"{damping * 10 ** (_TRIES - 1):g} of its mean; calibrate with more text, or with more "
        "--damping"
    )
