"""Computes the memory that the weights of a plan take."""

from __future__ import annotations

import math

from penstock.plan.adapt import adapter_bytes
from penstock.plan.ops import Embed, ExpertLinear, Linear, WeightName
from penstock.plan.plan import Plan
from penstock.quant.scheme import QuantScheme


def weight_bytes(plan: Plan) -> int:
    """Return the bytes of all weights in every form in which ops read them: a tied embedding counts
    twice where the output matrix is quantized. With those that adapters may take.

    A backend whose kernels need more forms than that has an account of its own.
    """
    element = 4 if plan.weight_dtype == "float32" else 2
    forms: set[tuple[WeightName, QuantScheme | None]] = set()
    for op in plan.ops:
        scheme: QuantScheme | None = None
        matrices: set[WeightName] = set()
        if isinstance(op, Linear | ExpertLinear):
            scheme, matrices = op.scheme, {part.weight for part in op.parts}
        elif isinstance(op, Embed):
            scheme, matrices = op.scheme, {op.weight}
        forms |= {(name, scheme if name in matrices else None) for name in op.weights}
    total = adapter_bytes(plan)
    for name, scheme in forms:
        shape = plan.weights[name].shape
        rows = math.prod(shape[:-1])  # of all experts, where there are some
        total += rows * shape[-1] * element if scheme is None else scheme.nbytes(rows, shape[-1])
    return total
