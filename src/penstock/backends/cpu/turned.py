"""Products with lattice points, as native kernels compute them: between turns of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.backends.cpu.ordered import gathered
from penstock.interface.sources import Packed
from penstock.plan.ops import (
    Buffer,
    BufferName,
    Gate,
    Join,
    Linear,
    Op,
    WeightName,
)
from penstock.plan.plan import Plan
from penstock.quant.scheme import LATTICE_COLUMNS as COLUMNS
from penstock.quant.scheme import BlockScheme, LatticeBits, LatticeScheme


@dataclass(frozen=True)
class TurnRows(Op):
    """``out[r]`` is x[r], turned as the columns of matrices of ``scheme`` were
    (``Turn(k, scheme.seed, "input")``), and rounded to out's element type.

    x and out ``[rows, k]`` in float32 or bfloat16, and apart.
    """

    _reads = ("x",)
    _writes = ("out",)
    x: BufferName
    out: BufferName
    scheme: LatticeScheme


@dataclass(frozen=True)
class TurnBack(Op):
    """``scale * (x + second / divisor)`` turned back as the rows of the part's matrix were turned,
    plus bias; of the columns of x and second from ``first`` on, with the scale of the matrix.

    x and second ``[rows, columns]`` float32; out ``[rows, n]`` in float32 or bfloat16, apart from
    both. There is no second where the scheme has 2 bits.
    """

    _reads = ("x", "second")
    _writes = ("out",)
    _weights = ("bias",)
    x: BufferName
    second: BufferName | None
    out: BufferName
    first: int
    matrix: WeightName
    """The weight that has the scale."""
    bias: WeightName | None
    scheme: LatticeScheme


E8P: Final = BlockScheme("E8P", COLUMNS, 8, whole=False)
"""How kernels call the first points of 32 columns, and what they take."""
SECOND_POINTS: Final[Mapping[LatticeBits, BlockScheme]] = {
    3: BlockScheme("SMALL_E8", COLUMNS, 4, whole=False),
    4: BlockScheme("E8P second", COLUMNS, 8, whole=False),
}
"""The second points, by the bits of the scheme."""


def as_native(plan: Plan) -> Plan:
    """The plan by the ops of the native executor."""
    return turned(gathered(plan))


def turned(plan: Plan) -> Plan:
    """The plan with a turn before each product with lattice points, and one behind each part.

    Raises ValueError where a matrix is some rows of what a checkpoint has, since turning back joins
    all of them, and where a row is no whole number of blocks of 32 columns.
    """
    buffers = dict(plan.buffers)
    result: list[Op] = []
    for op in plan.ops:
        if isinstance(op, Linear) and isinstance(op.scheme, LatticeScheme):
            result += _between_turns(plan, op, op.scheme, buffers)
        else:
            result.append(op)
    return replace(plan, ops=tuple(result), buffers=buffers)


def _between_turns(
    plan: Plan, op: Linear, scheme: LatticeScheme, buffers: dict[BufferName, Buffer]
) -> Iterator[Op]:
    """The ops that ``op`` becomes; declares what they write."""
    for part in op.parts:
        source = plan.weights[part.weight].source
        if not isinstance(source, Packed) or source.shape != (part.n, op.k):
            raise ValueError(f"{part.weight} is some rows of a matrix in {scheme}")
    if op.k % COLUMNS:
        raise ValueError(f"rows of {op.k} columns in {scheme}, which are no whole {COLUMNS}")
    x, out = buffers[op.x], buffers[op.out]

    def declared(name: str, columns: int) -> BufferName:
        buffers[name] = Buffer(name, out.rows, columns, "float32")
        return name

    read = f"{op.out}.turned"
    buffers[read] = replace(x, name=read)
    yield TurnRows(op.x, read, scheme)
    columns = sum(part.n for part in op.parts)
    first = declared(f"{op.out}.points", columns)
    parts = tuple(replace(part, bias=None) for part in op.parts)
    product = Linear(read, first, op.k, parts, scheme=E8P, weight_only=True)
    yield product
    second = None
    if scheme.bits > 2:
        second = declared(f"{op.out}.second points", columns)
        yield replace(product, out=second, scheme=SECOND_POINTS[scheme.bits])
    at, outs = 0, []
    for part in op.parts:
        own = op.out
        if len(op.parts) > 1:
            own = declared(f"{op.out}.{part.weight}", part.n)
        yield TurnBack(first, second, own, at, part.weight, part.bias, scheme)
        outs.append(own)
        at += part.n
    if op.gated is not None:
        gate, up = outs
        yield Gate(gate, up, op.out, op.gated)
    elif len(outs) > 1:
        yield Join(tuple(outs), op.out)
