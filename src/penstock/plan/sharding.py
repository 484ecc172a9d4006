"""The rewriting of a plan's ops, one by one, into those of one of several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.errors import ConfigError
from penstock.interface.sources import PlanWeight, RowsOf, RowsOfEach, Share, Source
from penstock.plan.ops import (
    AllGather,
    Attention,
    Buffer,
    BufferName,
    CombineExperts,
    ExpertLinear,
    HeadLinear,
    HeadNorm,
    Join,
    KvWrite,
    Linear,
    LinearPart,
    Op,
    ScaleRows,
    WeightName,
)
from penstock.plan.plan import Plan
from penstock.plan.shard_grains import BY_HEAD, grains, is_local

Columns = tuple[int, int]
"""The range of a buffer's columns that a rank has."""


class Sharding:
    """Rewrites ops one by one and knows of each buffer which columns the rank has."""

    def __init__(self, plan: Plan, rank: int, world: int) -> None:
        self._whole = plan
        self._rank = rank
        self._world = world
        self._ops: list[Op] = []
        self._buffers: dict[BufferName, Buffer] = {}
        self._weights: dict[WeightName, PlanWeight] = {}
        self._cut: dict[BufferName, Columns] = {}
        """Buffers of which the rank has computed its own columns, under :func:`_share_name`."""
        self._gathered: set[BufferName] = set()
        """Those of them that all ranks have whole as well."""
        self._grain = grains(plan, world)

    def plan(self) -> Plan:
        for op in self._whole.ops:
            self._append(op)
        for name in self._whole.results:
            self._read_whole(name)
        layers = tuple(
            layer
            if layer.value_dim is not None
            else replace(layer, kv_heads=layer.kv_heads // self._world)
            for layer in self._whole.kv_layers
        )
        return replace(
            self._whole,
            ops=tuple(self._ops),
            buffers=self._buffers,
            weights=self._weights,
            kv_layers=layers,
        )

    def _append(self, op: Op) -> None:
        match op:
            case Linear():
                self._linear(op)
            case ExpertLinear():
                self._expert_linear(op)
            case HeadLinear() if self._own_heads([op.x], op.heads) is not None:
                self._head_linear(op)
            case Attention():
                self._attention(op)
            case KvWrite() if op.v is not None:
                heads = op.kv_heads // self._world
                k, v = (self._own(name, op.head_dim * heads) for name in (op.k, op.v))
                self._ops.append(replace(op, k=k, v=v, kv_heads=heads))
            case Join() if op.heads is not None and self._own_heads(op.xs, op.heads) is not None:
                self._join(op, op.heads)
            case ScaleRows() | CombineExperts():
                self._weighed(op)
            case _ if is_local(op) and self._stays_cut(op):
                self._local(op)
            case _:
                self._by_all(op)

    def _by_all(self, op: Op) -> None:
        """An op that every rank computes."""
        for name in op.reads:
            self._read_whole(name)
        for name in op.writes:
            self._write_whole(name)
        for name in op.weights:
            self._weights[name] = self._whole.weights[name]
        self._ops.append(op)

    def _local(self, op: Op) -> None:
        columns = self._cut[op.reads[0]]
        (written,) = op.writes
        if isinstance(op, HeadNorm) and op.each_head:
            op = self._own_norms(op, columns)
        else:
            # Weights of a head's components, which all heads share, and xIELU's numbers.
            for name in op.weights:
                self._weights[name] = self._whole.weights[name]
        names = {name: _share_name(name) for name in op.reads}
        names[written] = self._write_cut(written, columns)
        self._ops.append(op.renamed(names))

    def _weighed(self, op: ScaleRows | CombineExperts) -> None:
        """Rows times numbers, which all ranks have."""
        numbers = op.by if isinstance(op, ScaleRows) else op.shares
        columns = self._cut.get(op.x)
        if columns is None:
            self._by_all(op)
            return
        if numbers is not None:
            self._read_whole(numbers)
        x = _share_name(op.x)  # which may be written
        self._ops.append(replace(op, x=x, out=self._write_cut(op.out, columns)))

    def _own_heads(self, names: Sequence[BufferName], heads: int) -> Columns | None:
        """The heads of all these buffers that the rank has; None where it has not the same of
        each, or has all."""
        own = set()
        for name in names:
            columns, size = self._cut.get(name), self._whole.buffers[name].cols // heads
            if columns is None or any(edge % size for edge in columns):
                return None
            own.add((columns[0] // size, columns[1] // size))
        return own.pop() if len(own) == 1 else None

    def _join(self, op: Join, of: int) -> None:
        heads = self._own_heads(op.xs, of)
        assert heads is not None
        size = self._whole.buffers[op.out].cols // of
        out = self._write_cut(op.out, (heads[0] * size, heads[1] * size))
        xs = tuple(map(_share_name, op.xs))
        self._ops.append(replace(op, xs=xs, out=out, heads=heads[1] - heads[0]))

    def _head_linear(self, op: HeadLinear) -> None:
        heads = self._own_heads([op.x], op.heads)
        assert heads is not None
        first, end = heads
        rows = op.k if op.transposed else op.n
        self._ops.append(
            replace(
                op,
                x=_share_name(op.x),
                out=self._write_cut(op.out, (first * op.n, end * op.n)),
                weight=self._rows(op.weight, (first * rows, end * rows)),
                heads=end - first,
            )
        )

    def _expert_linear(self, op: ExpertLinear) -> None:
        """The rank's columns of what every expert makes."""
        columns = self._share(op.n, 1)
        if columns is None:
            self._by_all(op)
            return
        for name in op.reads:
            self._read_whole(name)
        parts = tuple(
            LinearPart(
                self._rows(part.weight, columns, each=True),
                columns[1] - columns[0],
                None if part.bias is None else self._rows(part.bias, columns, each=True),
            )
            for part in op.parts
        )
        self._ops.append(replace(op, out=self._write_cut(op.out, columns), parts=parts))

    def _linear(self, op: Linear) -> None:
        self._read_whole(op.x)
        (part,) = op.parts
        grain = self._grain.get(op.out, 1)
        columns = self._share(part.n, grain)
        if columns is None:
            self._by_all(op)
            return
        own = LinearPart(
            self._rows(part.weight, columns),
            columns[1] - columns[0],
            None if part.bias is None else self._rows(part.bias, columns),
        )
        self._ops.append(replace(op, out=self._write_cut(op.out, columns), parts=(own,)))

    def _own_norms(self, op: HeadNorm, columns: Columns) -> HeadNorm:
        """The norm of the rank's heads, by their weights."""
        heads = (columns[0] // op.head_dim, columns[1] // op.head_dim)
        return replace(
            op,
            weight=None if op.weight is None else self._rows(op.weight, heads),
            bias=None if op.bias is None else self._rows(op.bias, heads),
        )

    def _attention(self, op: Attention) -> None:
        # Each rank has all latents: every head reads all of a token's.
        groups = op.kv_heads if op.value_dim is not None else op.kv_heads // self._world
        heads, size = op.heads // self._world, op.value_dim or op.head_dim
        q = self._own(op.q, heads * op.head_dim)
        first = self._rank * heads
        own = (first, first + heads)
        sinks = None if op.sinks is None else self._rows(op.sinks, own)
        columns = (first * size, (first + heads) * size)
        self._ops.append(
            replace(
                op,
                q=q,
                out=self._write_cut(op.out, columns),
                heads=heads,
                kv_heads=groups,
                slopes=None if op.slopes is None else op.slopes[slice(*own)],
                sinks=sinks,
            )
        )

    def _share(self, n: int, grain: int) -> Columns | None:
        """The rank's columns of ``n``, in whole grains; None where there are fewer of these than
        ranks, so that all compute all."""
        grains = n // grain
        if grains < self._world:
            return None
        first, end = (grains * r // self._world * grain for r in (self._rank, self._rank + 1))
        return first, end

    def _stays_cut(self, op: Op) -> bool:
        """Whether the rank can compute its columns of the op's output from those that it has."""
        cuts = {self._cut.get(name) for name in op.reads}
        if len(cuts) != 1:
            return False
        (columns,) = cuts
        if columns is None:
            return False
        return not isinstance(op, BY_HEAD) or all(edge % op.head_dim == 0 for edge in columns)

    def _own(self, name: BufferName, columns: int) -> BufferName:
        """The rank's share of a buffer of heads."""
        first = self._rank * columns
        if self._cut.get(name) != (first, first + columns):
            raise ConfigError(
                "the model computes queries, keys or values over all heads at once, so that ranks "
                "cannot share its KV heads; run it on one"
            )
        return _share_name(name)

    def _read_whole(self, name: BufferName) -> None:
        """Have all of a buffer's columns, under its own name."""
        if name in self._cut and name not in self._gathered:
            self._ops.append(AllGather(_share_name(name), name))
            self._buffers[name] = self._whole.buffers[name]
            self._gathered.add(name)

    def _write_whole(self, name: BufferName) -> None:
        self._buffers[name] = self._whole.buffers[name]
        self._cut.pop(name, None)
        self._gathered.discard(name)

    def _write_cut(self, name: BufferName, columns: Columns) -> BufferName:
        own = _share_name(name)
        width = columns[1] - columns[0]
        self._buffers[own] = replace(self._whole.buffers[name], name=own, cols=width)
        self._cut[name] = columns
        self._gathered.discard(name)
        return own

    def _rows(self, name: WeightName, rows: Columns, each: bool = False) -> WeightName:
        """The rank's rows of a weight, or of each matrix of a stack, under a name of their own:
        others may read it whole."""
        own, whole = _share_name(name), self._whole.weights[name]
        source: Source = RowsOf(whole.source, (rows,))
        if each:
            source = RowsOfEach(whole.source, rows[0], rows[1] - rows[0])
        share = Share(name, whole.shape, (rows,), each)
        self._weights[own] = replace(whole, source=source, share=share)
        return own


def _share_name(name: str) -> str:
    return f"{name}.share"
