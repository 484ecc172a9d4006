"""Weights in 8 or 4 bits: how they are chosen, made from floating point, and undone."""

from penstock.quant.scheme import Quantization, QuantScheme
from penstock.quant.tensor import QuantizedTensor, dequantize, quantize, require_finite

__all__ = [
    "QuantScheme",
    "Quantization",
    "QuantizedTensor",
    "dequantize",
    "quantize",
    "require_finite",
]
