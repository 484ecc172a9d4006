"""The rewriting of a plan's ops, one by one, into those of one of several ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.models.spec import GatedDeltaSpec, SelectiveSpec, StateSpec
from penstock.plan.kv_groups import KvLayer
from penstock.plan.ops import (
    Argmax,
    Attention,
    BufferName,
    CombineExperts,
    ExpertLinear,
    GatedDelta,
    GatedNorm,
    HeadLinear,
    HeadNorm,
    Join,
    KvWrite,
    Linear,
    LinearPart,
    Op,
    Route,
    ScaleRows,
    SelectiveScan,
    ShortConv,
    StateConv,
)
from penstock.plan.plan import Plan
from penstock.plan.shard_columns import is_local, kept_apart, own_kv_heads
from penstock.plan.shard_heads import Cut, Range, evenly, head_cuts
from penstock.plan.shard_states import Runs, own_state, within
from penstock.plan.shares import Shares, in_whole, share_name
from penstock.plan.state_layers import state_layer


class Sharding(Shares):
    """Rewrites ops one by one."""

    def __init__(self, plan: Plan, states: Sequence[StateSpec], rank: int, world: int) -> None:
        """``states``: those that ops refer to by index."""
        super().__init__(plan, rank, world)
        self._apart = kept_apart(plan, world)
        self._routed_by = {op.logits for op in plan.ops if isinstance(op, Route)}
        """What routers write: products so small that ranks compute all sooner than they meet."""
        self._states = [own_state(spec, rank, world) for spec in states]
        self._runs = self._inputs_of_states()
        """Columns that the rank has, in several runs, of each buffer that states alone read."""

    def plan(self) -> Plan:
        for op in self._whole.ops:
            self._append(op)
        result, whole = self._read_by_first, self._whole
        layers = tuple(map(self._own_cache, range(len(whole.kv_layers))))
        own = replace(  # which may append ops that gather
            whole,
            logits=None if whole.logits is None else result(whole.logits),
            argmax=None if whole.argmax is None else result(whole.argmax),
            hidden=None if whole.hidden is None else result(whole.hidden),
            taps=None if whole.taps is None else result(whole.taps),
            more_logits=tuple(map(result, whole.more_logits)),
            leaving=tuple(map(result, whole.leaving)),
        )
        return replace(
            own,
            ops=tuple(self._ops),
            buffers=self._buffers,
            weights=self._weights,
            kv_layers=layers,
            kv_runs=tuple(group.layers for group in whole.kv_groups),
            state_layers=tuple(state_layer(own.spec) for own in self._states),
        )

    def _own_cache(self, number: int) -> KvLayer:
        """What the rank caches of a layer."""
        layer = self._whole.kv_layers[number]
        if layer.value_dim is not None:
            return layer
        if layer.rows is not None:
            return replace(layer, head_dim=layer.head_dim // self._world)
        first, end = self._mine(own_kv_heads(self._whole, number, self._world))
        return replace(layer, kv_heads=end - first)

    def _inputs_of_states(self) -> dict[BufferName, Runs]:
        runs: dict[BufferName, Runs] = {}
        for op in self._whole.ops:
            if isinstance(op, StateConv):
                runs[op.x] = runs[op.out] = self._states[op.layer].channels
            elif isinstance(op, GatedDelta):
                first, end = self._states[op.layer].heads
                runs[op.ba] = (first, end), (op.value_heads + first, op.value_heads + end)
        return runs

    def _append(self, op: Op) -> None:
        match op:
            case Linear() if op.out in self._runs:
                self._in_runs(op)
            case Linear():
                self._linear(op)
            case StateConv() | GatedDelta() | SelectiveScan():
                self._state(op)
            case ShortConv():
                self._short_conv(op)
            case GatedNorm() if self._own_parts(op):
                self._gated_norm(op)
            case ExpertLinear():
                self._expert_linear(op)
            case HeadLinear() if self._own_heads([op.x], op.heads) is not None:
                self._head_linear(op)
            case Attention():
                self._attention(op)
            case KvWrite() if op.v is not None:
                k, v = (self._own(name, self._apart[name]) for name in (op.k, op.v))
                heads = self._own_cache(op.layer).kv_heads
                self._ops.append(replace(op, k=k, v=v, kv_heads=heads))
            case Join() if op.heads is not None and self._own_heads(op.xs, op.heads) is not None:
                self._join(op, op.heads)
            case Argmax():  # of logits, from which rank 0 draws
                self._write_whole(op.out)
                self._ops.append(replace(op, x=self._read_by_first(op.x)))
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
        for name in op.writes:  # norms of all heads' queries or keys
            if name in self._apart and self._whole.buffers[name].element == "float32":
                self._take(name, self._apart[name])

    def _local(self, op: Op) -> None:
        cut = self._cut[op.reads[0]]
        (written,) = op.writes
        if isinstance(op, HeadNorm) and op.each_head:
            op = self._own_norms(op, self._mine(cut))
        else:
            # Weights of a head's components, which all heads share, and xIELU's numbers.
            for name in op.weights:
                self._weights[name] = self._whole.weights[name]
        names = {name: share_name(name) for name in op.reads}
        names[written] = self._write_cut(written, cut)
        self._ops.append(op.renamed(names))

    def _weighed(self, op: ScaleRows | CombineExperts) -> None:
        """Rows times numbers, which all ranks have."""
        numbers = op.by if isinstance(op, ScaleRows) else op.shares
        cut = self._cut.get(op.x)
        if cut is None:
            self._by_all(op)
            return
        if numbers is not None:
            self._read_whole(numbers)
        x = share_name(op.x)  # which may be written
        self._ops.append(replace(op, x=x, out=self._write_cut(op.out, cut)))

    def _join(self, op: Join, of: int) -> None:
        heads = self._own_heads(op.xs, of)
        assert heads is not None
        size = self._whole.buffers[op.out].cols // of
        out = self._write_cut(op.out, tuple((a * size, b * size) for a, b in heads))
        xs = tuple(map(share_name, op.xs))
        first, end = self._mine(heads)
        self._ops.append(replace(op, xs=xs, out=out, heads=end - first))

    def _head_linear(self, op: HeadLinear) -> None:
        heads = self._own_heads([op.x], op.heads)
        assert heads is not None
        first, end = self._mine(heads)
        rows = op.k if op.transposed else op.n
        self._ops.append(
            replace(
                op,
                x=share_name(op.x),
                out=self._write_cut(op.out, tuple((a * op.n, b * op.n) for a, b in heads)),
                weight=self._rows(op.weight, (first * rows, end * rows)),
                heads=end - first,
            )
        )

    def _expert_linear(self, op: ExpertLinear) -> None:
        """The rank's columns of what every expert makes."""
        cut = self._share(op.n)
        if cut is None:
            self._by_all(op)
            return
        columns = self._mine(cut)
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
        self._ops.append(replace(op, out=self._write_cut(op.out, cut), parts=parts))

    def _linear(self, op: Linear) -> None:
        self._read_whole(op.x)
        (part,) = op.parts
        cut = self._apart.get(op.out) or self._share(part.n)
        if cut is None or op.out in self._routed_by:
            self._by_all(op)
            return
        columns = self._mine(cut)
        own = LinearPart(
            self._rows(part.weight, columns),
            columns[1] - columns[0],
            None if part.bias is None else self._rows(part.bias, columns),
        )
        self._ops.append(replace(op, out=self._write_cut(op.out, cut), parts=(own,)))

    def _in_runs(self, op: Linear) -> None:
        """A product that a state reads: of each part, the rows for the rank's heads."""
        self._read_whole(op.x)
        runs, parts, first = self._runs[op.out], [], 0
        for part in op.parts:
            own = within(runs, first, first + part.n)
            bias = None if part.bias is None else self._rows(part.bias, *own)
            n = sum(b - a for a, b in own)
            parts.append(LinearPart(self._rows(part.weight, *own), n, bias))
            first += part.n
        self._ops.append(replace(op, out=self._write_runs(op.out), parts=tuple(parts)))

    def _write_runs(self, name: BufferName) -> BufferName:
        """Declare the rank's share of a buffer that is never read whole."""
        own, width = share_name(name), sum(b - a for a, b in self._runs[name])
        self._buffers[own] = replace(self._whole.buffers[name], name=own, cols=width)
        return own

    def _state(self, op: StateConv | GatedDelta | SelectiveScan) -> None:
        own = self._states[op.layer]
        if isinstance(op, StateConv):
            bias = None if op.bias is None else self._rows(op.bias, *own.channels)
            weight, x = self._rows(op.weight, *own.channels), share_name(op.x)
            out = self._write_runs(op.out)
            self._ops.append(replace(op, x=x, out=out, weight=weight, bias=bias))
            return
        a_log, dt_bias = self._rows(op.a_log, own.heads), self._rows(op.dt_bias, own.heads)
        if isinstance(op, GatedDelta):
            assert isinstance(own.spec, GatedDeltaSpec)
            self._ops.append(
                replace(
                    op,
                    qkv=share_name(op.qkv),
                    ba=share_name(op.ba),
                    out=self._write_cut(
                        op.out, evenly_of(op.value_heads, op.value_dim, self._world)
                    ),
                    a_log=a_log,
                    dt_bias=dt_bias,
                    key_heads=own.spec.key_heads,
                    value_heads=own.spec.value_heads,
                )
            )
            return
        assert isinstance(own.spec, SelectiveSpec)
        self._ops.append(
            replace(
                op,
                xbc=share_name(op.xbc),
                dt=self._own(op.dt, evenly(op.heads, self._world)),
                out=self._write_cut(op.out, evenly_of(op.heads, op.head_dim, self._world)),
                a_log=a_log,
                dt_bias=dt_bias,
                d=self._rows(op.d, own.heads),
                heads=own.spec.heads,
                groups=own.spec.groups,
            )
        )

    def _short_conv(self, op: ShortConv) -> None:
        cut = evenly(self._whole.buffers[op.x].cols, self._world)
        columns = self._mine(cut)
        self._ops.append(
            replace(
                op,
                x=self._own(op.x, cut),
                out=self._write_cut(op.out, cut),
                weight=self._rows(op.weight, columns),
                bias=None if op.bias is None else self._rows(op.bias, columns),
            )
        )

    def _own_parts(self, op: GatedNorm) -> bool:
        """Whether the rank has whole parts of what is normed, and their gates."""
        cut = self._cut.get(op.x)
        return cut is not None and cut == self._cut.get(op.gate) and in_whole(cut, op.size)

    def _gated_norm(self, op: GatedNorm) -> None:
        cut = self._cut[op.x]
        if op.each_part:
            weight = self._rows(op.weight, self._mine(cut))
        else:
            weight = op.weight
            self._weights[weight] = self._whole.weights[weight]
        x, gate = share_name(op.x), share_name(op.gate)
        out = self._write_cut(op.out, cut)
        self._ops.append(replace(op, x=x, gate=gate, out=out, weight=weight))

    def _own_norms(self, op: HeadNorm, columns: Range) -> HeadNorm:
        """The norm of the rank's heads, by their weights."""
        heads = (columns[0] // op.head_dim, columns[1] // op.head_dim)
        return replace(
            op,
            weight=None if op.weight is None else self._rows(op.weight, heads),
            bias=None if op.bias is None else self._rows(op.bias, heads),
        )

    def _attention(self, op: Attention) -> None:
        cuts, size = head_cuts(op, self._world), op.value_dim or op.head_dim
        own, (kv, kv_end) = self._mine(cuts.queries), self._mine(cuts.kv)
        q = self._own(op.q, self._apart[op.q])
        sinks = None if op.sinks is None else self._rows(op.sinks, own)
        out = self._write_cut(op.out, tuple((a * size, b * size) for a, b in cuts.queries))
        self._ops.append(
            replace(
                op,
                q=q,
                out=out,
                heads=own[1] - own[0],
                kv_heads=kv_end - kv,
                slopes=None if op.slopes is None else op.slopes[slice(*own)],
                sinks=sinks,
            )
        )


def evenly_of(heads: int, size: int, world: int) -> Cut:
    """The columns of each rank's heads, of ``size`` columns each."""
    return tuple((a * size, b * size) for a, b in evenly(heads, world))
