"""Computes the memory that the native executor keeps weights in, before any of it is allocated."""

from __future__ import annotations

import math

from penstock.backends.cpu.forms import packed_bytes
from penstock.backends.cpu.ordered import GatherColumns
from penstock.backends.cpu.turned import TurnBack, as_native
from penstock.plan import ops
from penstock.plan.adapt import adapter_bytes
from penstock.plan.plan import Plan
from penstock.plan.tied import tied_product

_FLOAT32 = 4
_INT32 = 4


def weight_bytes(plan: Plan) -> int:
    """Return the bytes of all weights of ``plan``, fused or not, as ``cpu.bind.bind`` keeps them.

    Every op has its weights in a form of its own: the lookup reads a table of rows and a product a
    packed matrix, so a tied embedding counts twice even where both have the same element type, and
    once where both read blocks.
    Norms, biases and other vectors are float32. Adapters count as if all slots had some of the
    largest rank. Not counted: what pads packed matrices to whole
    panels, and numbers that the plan itself holds, such as rotary tables.
    """
    return adapter_bytes(plan) + sum(_op_bytes(plan, op) for op in as_native(plan).ops)


def _op_bytes(plan: Plan, op: ops.Op) -> int:
    element = 4 if plan.weight_dtype == "float32" else 2
    if isinstance(op, ops.Linear | ops.ExpertLinear):
        return _product_bytes(plan, op, element)
    if isinstance(op, GatherColumns):
        stacks = (plan.weights[name].shape[:-2] for name in op.matrices)
        orders = sum(map(math.prod, stacks))
        return orders * plan.buffers[op.x].cols * _INT32
    if isinstance(op, TurnBack):  # with the scale of its matrix
        return _FLOAT32 * (1 + sum(plan.weights[name].shape[0] for name in op.weights))
    if isinstance(op, ops.Embed) and op.scheme is not None:
        rows, columns = plan.weights[op.weight].shape
        dtype = plan.weight_dtype
        return 0 if tied_product(plan, op) else packed_bytes(op.scheme, rows, columns, dtype)
    whole = isinstance(op, ops.Embed | ops.AddPositions | ops.HeadLinear)
    size = element if whole else _FLOAT32
    return sum(math.prod(plan.weights[name].shape) * size for name in op.weights)


def _product_bytes(plan: Plan, op: ops.Linear | ops.ExpertLinear, element: int) -> int:
    """Matrices and, where a part has one, biases of all parts; of all experts."""
    experts = 1
    if isinstance(op, ops.ExpertLinear):
        experts = plan.weights[op.parts[0].weight].shape[0]
    rows = experts * sum(part.n for part in op.parts)
    matrices = rows * op.k * element
    if op.scheme is not None:
        matrices = packed_bytes(op.scheme, rows, op.k, plan.weight_dtype)
    biased = any(part.bias is not None for part in op.parts)
    return matrices + (rows * _FLOAT32 if biased else 0)
