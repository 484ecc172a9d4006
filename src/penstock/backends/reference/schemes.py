"""Rounding and products of each quantization scheme, listed in :data:`SCHEMES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from penstock.backends.reference.numerics import (
    F32,
    grid_product,
    int_product,
    points_by_group,
    points_on_grid,
)
from penstock.quant import (
    GridScheme,
    GridTensor,
    GroupScheme,
    GroupTensor,
    QuantScheme,
    quantize,
    quantize_to_grid,
)

CanonicalTensor = GroupTensor | GridTensor


@dataclass(frozen=True)
class SchemeProducts:
    """How matrices of a scheme are rounded and multiplied, as ``plan.ops.Linear`` defines it."""

    round: Callable[[NDArray[Any], Any, str], CanonicalTensor]
    """Callback that rounds: takes a matrix ``[n, k]``, its scheme, and its name for messages."""
    integers: Callable[[F32, Any], F32]
    """``x @ W.T`` with x rounded on the way."""
    weight_only: Callable[[F32, Any], F32]
    """``x @ W.T`` with x as it is."""


SCHEMES: Final[Mapping[type[QuantScheme], SchemeProducts]] = {
    GridScheme: SchemeProducts(quantize_to_grid, grid_product, points_on_grid),
    GroupScheme: SchemeProducts(quantize, int_product, points_by_group),
}
