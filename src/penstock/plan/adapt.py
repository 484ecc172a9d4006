"""Adapting: a pass behind fusion that lets rows have low-rank adapters.

Behind each product whose matrix an adapter may change it puts two ops, which add the adapter's part
to what the product made: ``AdapterDown``, from the input to a few columns, and ``AdapterUp``, from
those to the output. They do nothing for rows without an adapter, so that such a row has the bits
that it has in the plan as it was. A plan that serves no adapters is not touched, and pays nothing.

An addition stands before the activation. So a product of gate and up with the activation in its
epilogue is taken apart again: into both products, their additions, and the gate, whose bits on a
CPU are those of the epilogue. The input is multiplied as it lies in its buffer, in floats, also
where the product itself rounds it to int8. Where a balanced plan has divided its columns by
factors, an adapter's are multiplied by them as it is written; they are weights of the plan, since
matrices and a measured text tell them, and neither is there when an adapter comes.

Matrices that adapters cannot change: those of experts, those of single heads (``HeadLinear``), and
an output matrix that is the table of embeddings, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from penstock.errors import ConfigError
from penstock.interface.adapters import MAX_RANK, AdapterSlots
from penstock.interface.plan_weights import PlanWeight
from penstock.interface.sources import Constant
from penstock.plan.ops import (
    AdapterDown,
    AdapterPart,
    AdapterUp,
    Buffer,
    BufferName,
    Embed,
    Gate,
    Linear,
    Op,
    WeightName,
)
from penstock.plan.plan import Plan


def adapt(plan: Plan, slots: AdapterSlots) -> Plan:
    """Return the fused and balanced ``plan`` with room for so many adapters of so large a rank at
    once."""
    if not 0 < slots.rank <= MAX_RANK:
        raise ConfigError(f"max_lora_rank must be 1 to {MAX_RANK}, not {slots.rank}")
    buffers, weights = dict(plan.buffers), dict(plan.weights)
    ops: list[Op] = []
    tables = {op.weight for op in plan.ops if isinstance(op, Embed)}
    for op in plan.ops:
        if not isinstance(op, Linear) or tables & {part.weight for part in op.parts}:
            ops.append(op)
        else:
            products = [op] if op.gated is None else _apart(op, buffers)
            ops += products
            ops += _additions(op, products, buffers, weights, slots.rank)
            if op.gated is not None:
                gate, up = products
                ops.append(Gate(gate.out, up.out, op.out, op.gated))
    if len(ops) == len(plan.ops):
        raise ConfigError(
            "the model has no matrix that an adapter could change; leave out max_loras"
        )
    read = {name: weights[name] for op in ops for name in op.weights}
    return replace(plan, ops=tuple(ops), buffers=buffers, weights=read, adapters=slots)


def without_adapters(plan: Plan) -> Plan:
    """Return ``plan`` with no room for adapters: what is left computes rows without one."""
    if plan.adapters is None:
        return plan
    ops = tuple(op for op in plan.ops if not isinstance(op, AdapterDown | AdapterUp))
    read = {name for op in ops for name in op.weights}
    weights = {name: weight for name, weight in plan.weights.items() if name in read}
    return replace(plan, ops=ops, weights=weights, adapters=None)


def adapted_matrices(plan: Plan) -> dict[WeightName, tuple[int, int]]:
    """The matrices of ``plan`` that adapters may change, and their shapes ``[n, k]``."""
    return {
        part.target: (part.n, op.k)
        for op in plan.ops
        if isinstance(op, AdapterDown)
        for part in op.parts
    }


def adapter_bytes(plan: Plan) -> int:
    """The bytes of adapters of the largest rank in all slots."""
    if plan.adapters is None:
        return 0
    columns = sum(n + k for n, k in adapted_matrices(plan).values())
    element = 2 if plan.weight_dtype == "bfloat16" else 4
    return plan.adapters.count * plan.adapters.rank * columns * element


def _apart(op: Linear, buffers: dict[BufferName, Buffer]) -> list[Linear]:
    """Both products of a gated ``op``, each into a buffer of its own."""
    products = []
    for part in op.parts:
        name = f"{op.out}.{part.weight}"
        buffers[name] = Buffer(name, buffers[op.out].rows, part.n, "float32")
        products.append(replace(op, out=name, parts=(part,), gated=None))
    return products


def _additions(
    op: Linear,
    products: Sequence[Linear],
    buffers: dict[BufferName, Buffer],
    weights: dict[WeightName, PlanWeight],
    rank: int,
) -> Iterator[Op]:
    """What adds to the ``products`` that ``op`` became, which read the same; declares what lies
    between, and the factors."""
    out = products[0].out
    if buffers[out].element != "float32":
        raise ConfigError(f"{out} is no sum of float32, and adapters add to such alone")
    low = f"{out}.low"
    buffers[low] = Buffer(low, buffers[out].rows, len(op.parts) * rank, "float32")
    parts = tuple(AdapterPart(part.weight, part.n) for part in op.parts)

    def factors(name: WeightName, size: int, side: Literal["matrix", "input"]) -> WeightName | None:
        """The weight that has what a matrix's columns were multiplied by, or its rows divided."""
        given = tuple(each for each in weights[name].balances if each.side == side)
        if not given:
            return None
        declared = f"{name}.{'columns' if side == 'matrix' else 'rows'}"
        weights[declared] = PlanWeight(Constant(1.0, (size,)), balances=given)
        return declared

    yield AdapterDown(op.x, low, op.k, parts, rank, factors(parts[0].target, op.k, "matrix"))
    at = 0
    for product in products:
        own = parts[at : at + len(product.parts)]
        rows = factors(own[0].target, own[0].n, "input") if len(own) == 1 else None
        yield AdapterUp(low, product.out, own, at, rank, rows)
        at += len(own)
