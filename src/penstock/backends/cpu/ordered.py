"""Products of matrices whose columns have an order of their own, as native kernels compute them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock.interface.sources import packed
from penstock.plan.ops import Buffer, BufferName, Gate, Join, Linear, LinearPart, Op, WeightName
from penstock.plan.plan import Plan


@dataclass(frozen=True)
class GatherColumns(Op):
    """``out[r, j] = x[r, order[j]]`` for each of ``outs``, with the ``GroupTensor.order`` of its
    matrix.

    x and outs ``[rows, k]`` in float32 or bfloat16, of one type, and apart. A matrix whose columns
    lie in order has the order 0, 1, and so on. The order comes with the matrix, with which the next
    product of it is.
    """

    _reads = ("x",)
    x: BufferName
    outs: tuple[BufferName, ...]
    matrices: tuple[WeightName, ...]

    @property
    def writes(self) -> tuple[BufferName, ...]:
        return self.outs


def gathered(plan: Plan) -> Plan:
    """The plan with columns gathered before each product whose matrix may want another order.

    Matrices of one input may want different ones, and which is known when weights are read: what
    fusion has joined is computed by parts, whose outputs are joined or gated then.
    """
    buffers = dict(plan.buffers)
    ops: list[Op] = []
    for op in plan.ops:
        if isinstance(op, Linear) and any(_any_order(plan, part) for part in op.parts):
            ops += _by_parts(plan, op, buffers)
        else:
            ops.append(op)
    return replace(plan, ops=tuple(ops), buffers=buffers)


def _any_order(plan: Plan, part: LinearPart) -> bool:
    return any(each.format.any_order for each in packed(plan.weights[part.weight].source))


def _by_parts(plan: Plan, op: Linear, buffers: dict[BufferName, Buffer]) -> Iterator[Op]:
    """The ops that ``op`` becomes; declares what they write."""
    x, out = buffers[op.x], buffers[op.out]
    outs = [op.out]
    if len(op.parts) > 1:
        outs = [f"{op.out}.{part.weight}" for part in op.parts]
        for name, part in zip(outs, op.parts, strict=True):
            buffers[name] = Buffer(name, out.rows, part.n, "float32")
    matrices = tuple(part.weight for part in op.parts)
    reads = tuple(f"{op.x}.{matrix}" for matrix in matrices)
    buffers.update((read, replace(x, name=read)) for read in reads)
    yield GatherColumns(op.x, reads, matrices)
    for read, name, part in zip(reads, outs, op.parts, strict=True):
        yield replace(op, x=read, out=name, parts=(part,), gated=None)
    if op.gated is not None:
        gate, up = outs
        yield Gate(gate, up, op.out, op.gated)
    elif len(outs) > 1:
        yield Join(tuple(outs), op.out)
