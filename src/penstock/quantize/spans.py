"""Clipping: the codes of a group may span less than the range of its weights.

The largest weight of a group determines the scale of all its codes. With a smaller scale that
weight is clipped and loses more, and all others lose less. AWQ searches for the best fraction of
the range (arXiv 2306.00978). The search works with any method of rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.quantize.grid import F32, IntegerGrid

PARTS: Final = tuple(1 - 0.05 * step for step in range(11))
"""Fractions of a group's range that are tried. The largest comes first, and wins a tie."""
_VALUES: Final = 1 << 18
"""Weights searched at a time, about, so that they stay in a core's cache."""


def searched_fit(
    groups: F32, grid: IntegerGrid, losses: Callable[[F32], F32]
) -> tuple[F32, NDArray[np.int32]]:
    """Scales and zero points ``[n, ...]`` of groups ``[n, ..., columns]``, each for the fraction of
    its range that loses least. ``losses`` maps rounding errors ``[rows, ..., columns]`` of some of
    the ``n`` rows to the losses of their groups, ``[rows, ...]``."""
    scales = np.empty(groups.shape[:-1], np.float32)
    zeros = np.empty(groups.shape[:-1], np.int32)
    step = max(1, _VALUES // math.prod(groups.shape[1:]))
    for first in range(0, len(groups), step):
        rows = slice(first, first + step)
        scales[rows], zeros[rows] = _searched(groups[rows], grid, losses)
    return scales, zeros


def column_fit(grouped: F32, grid: IntegerGrid, lost: F32) -> tuple[F32, NDArray[np.int32]]:
    """Scales and zero points ``[n, groups]`` of groups ``[n, groups, size]``, as
    :func:`searched_fit` finds them where the loss of a group is the sum of its squared errors
    times the weights of their columns, ``lost`` ``[groups, size]``."""

    def losses(errors: F32) -> F32:
        summed: F32 = np.einsum("ngs,gs->ng", np.square(errors), lost)
        return summed

    return searched_fit(grouped, grid, losses)


def _searched(
    groups: F32, grid: IntegerGrid, losses: Callable[[F32], F32]
) -> tuple[F32, NDArray[np.int32]]:
    scales, zeros = grid.fit(groups)
    smallest = losses(grid.nearest(groups, scales, zeros) - groups)
    for part in PARTS[1:]:
        own_scales, own_zeros = grid.fit(groups * np.float32(part))
        lost = losses(grid.nearest(groups, own_scales, own_zeros) - groups)
        better = lost < smallest
        scales[better], zeros[better] = own_scales[better], own_zeros[better]
        smallest[better] = lost[better]
    return scales, zeros
