"""Weights in 8 or 4 bits: how they are chosen, made from floating point, and undone."""

from penstock.quant.errors import not_finite
from penstock.quant.grid import GridTensor, quantize_to_grid
from penstock.quant.scheme import GridScheme, GroupScheme, Quantization, QuantScheme
from penstock.quant.tensor import GroupTensor, quantize, require_finite, require_in_order

__all__ = [
    "GridScheme",
    "GridTensor",
    "GroupScheme",
    "GroupTensor",
    "QuantScheme",
    "Quantization",
    "not_finite",
    "quantize",
    "quantize_to_grid",
    "require_finite",
    "require_in_order",
]
