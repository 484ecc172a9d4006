"""Rounding to each quantization scheme, and products of quantized matrices."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from penstock.backends.reference.products import (
    F32,
    block_product,
    grid_product,
    int_product,
    lattice_product,
    points_by_group,
    points_on_grid,
    product,
)
from penstock.quant import (
    BlockScheme,
    BlockTensor,
    CodebookMatrix,
    CodebookScheme,
    GridScheme,
    GridTensor,
    GroupScheme,
    GroupTensor,
    LatticeMatrix,
    LatticeScheme,
    QuantScheme,
    quantize,
    quantize_to_grid,
)

CanonicalTensor = GroupTensor | GridTensor | BlockTensor | LatticeMatrix | CodebookMatrix


def rounded(
    matrix: NDArray[Any], scheme: QuantScheme, name: str, weight_only: bool
) -> CanonicalTensor:
    """Return ``matrix`` ``[n, k]`` quantized by ``scheme``, for products whose x is, too, or
    for ``weight_only`` ones.

    Raises WeightError, naming ``name``, where a value is not finite.
    """
    match scheme:
        case GridScheme():
            return quantize_to_grid(matrix, scheme, name, transformed=not weight_only)
        case GroupScheme():
            return quantize(matrix, scheme, name)
        case BlockScheme() | LatticeScheme() | CodebookScheme():
            raise ValueError(f"{name} is in floats, and nothing rounds to {scheme}")


def quantized_product(x: F32, w: CanonicalTensor, weight_only: bool) -> F32:
    """Return ``x @ W.T`` as :class:`penstock.plan.ops.Linear` defines it for the scheme of W.

    x ``[rows, k]`` is rounded on the way unless ``weight_only``.
    """
    match w:
        case GridTensor():
            return points_on_grid(x, w) if weight_only else grid_product(x, w)
        case GroupTensor():
            return points_by_group(x, w) if weight_only else int_product(x, w)
        case BlockTensor():
            return product(x, w.dequantize()) if weight_only else block_product(x, w)
        case LatticeMatrix():
            return lattice_product(x, w)
        case CodebookMatrix():
            return product(x, w.dequantize())
