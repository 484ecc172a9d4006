"""How much memory a model's weights take."""

from __future__ import annotations

import math

from penstock.models.spec import DType, ModelSpec
from penstock.quant.scheme import Quantization

_NAMED_LINEAR = frozenset({"q", "k", "v", "o", "gate", "up", "down", "fc"})


def weight_bytes(spec: ModelSpec, dtype: DType, quantization: Quantization) -> int:
    """Bytes of all weights in memory; a tied embedding counts twice if the head is quantized."""
    element = 4 if dtype == "float32" else 2
    total = 0
    for name, shape in spec.weight_shapes().items():
        scheme = None
        stem = name.rpartition(".")[2]
        if stem in _NAMED_LINEAR:
            scheme = quantization.linear
        elif stem == "head":
            scheme = quantization.head
        total += scheme.nbytes(*shape) if scheme else math.prod(shape) * element
    if spec.tie_embeddings and quantization.head is not None:
        total += quantization.head.nbytes(spec.vocab_size, spec.hidden_size)
    return total
