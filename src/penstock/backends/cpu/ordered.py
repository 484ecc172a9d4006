"""Products of matrices whose columns have an order of their own, as native kernels compute them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from penstock.interface.source_walks import packed
from penstock.plan.ops import (
    Buffer,
    BufferName,
    ExpertLinear,
    Gate,
    Join,
    Linear,
    LinearPart,
    Op,
    WeightName,
)
from penstock.plan.plan import Plan


@dataclass(frozen=True)
class GatherColumns(Op):
    """``out[r, j] = x[r, order[j]]`` for each of ``outs``, with the ``GroupTensor.order`` of its
    matrix.

    x and outs ``[rows, k]`` in float32 or bfloat16, of one type, and apart. A matrix whose columns
    lie in order has the order 0, 1, and so on. The order comes with the matrix, with which the next
    product of it is.

    With ``ids`` ``[T, n]`` int32, matrices are stacks by expert and outs ``[n * T, k]``, whose row
    r is in the order of the expert ``ids[r // n, r % n]``; it is of row r of x, or of row
    ``r // n`` where x has ``[T, k]``.
    """

    _reads = ("x", "ids")
    x: BufferName
    outs: tuple[BufferName, ...]
    matrices: tuple[WeightName, ...]
    ids: BufferName | None = None

    @property
    def writes(self) -> tuple[BufferName, ...]:
        return self.outs


def gathered(plan: Plan) -> Plan:
    """The plan with columns gathered before each product whose matrix may want another order.

    Matrices of one input may want different ones, and which is known when weights are read: what
    fusion has joined is computed by parts, whose outputs are joined or gated then.
    """
    buffers = dict(plan.buffers)
    result: list[Op] = []
    for op in plan.ops:
        if isinstance(op, Linear | ExpertLinear) and any(_any_order(plan, p) for p in op.parts):
            result += _by_parts(plan, op, buffers)
        else:
            result.append(op)
    return replace(plan, ops=tuple(result), buffers=buffers)


def _any_order(plan: Plan, part: LinearPart) -> bool:
    return any(each.format.any_order for each in packed(plan.weights[part.weight].source))


def _by_parts(
    plan: Plan, op: Linear | ExpertLinear, buffers: dict[BufferName, Buffer]
) -> Iterator[Op]:
    """The ops that ``op`` becomes; declares what they write."""
    x, out = buffers[op.x], buffers[op.out]
    outs = [op.out]
    if len(op.parts) > 1:
        outs = [f"{op.out}.{part.weight}" for part in op.parts]
        for name, part in zip(outs, op.parts, strict=True):
            buffers[name] = Buffer(name, out.rows, part.n, "float32")
    matrices = tuple(part.weight for part in op.parts)
    reads = tuple(f"{op.x}.{matrix}" for matrix in matrices)
    # Each of a token's experts has an order of its own.
    ids, rows = (op.ids, out.rows) if isinstance(op, ExpertLinear) else (None, x.rows)
    buffers.update((read, replace(x, name=read, rows=rows)) for read in reads)
    yield GatherColumns(op.x, reads, matrices, ids)
    for read, name, part in zip(reads, outs, op.parts, strict=True):
        yield replace(op, x=read, out=name, parts=(part,), gated=None)
    if op.gated is not None:
        gate, up = outs
        yield Gate(gate, up, op.out, op.gated)
    elif len(outs) > 1:
        yield Join(tuple(outs), op.out)
