"""Weights in 8 or 4 bits: how they are chosen, made from floating point, and undone."""

from penstock.quant.blocks import BlockFormat, BlockTensor
from penstock.quant.codebook import CodebookTensor
from penstock.quant.errors import not_finite
from penstock.quant.grid import GridTensor, quantize_to_grid
from penstock.quant.groups import GroupTensor, quantize, require_finite, require_in_order
from penstock.quant.hadamard import transform_rows
from penstock.quant.scheme import (
    BlockScheme,
    GridScheme,
    GroupScheme,
    Quantization,
    QuantScheme,
)

StoredTensor = GroupTensor | BlockTensor
"""A matrix that a checkpoint has quantized, as it is read."""

__all__ = [
    "BlockFormat",
    "BlockScheme",
    "BlockTensor",
    "CodebookTensor",
    "GridScheme",
    "GridTensor",
    "GroupScheme",
    "GroupTensor",
    "QuantScheme",
    "Quantization",
    "StoredTensor",
    "not_finite",
    "quantize",
    "quantize_to_grid",
    "require_finite",
    "require_in_order",
    "transform_rows",
]
