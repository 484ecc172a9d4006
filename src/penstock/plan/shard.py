"""Sharding: a pass between lowering and fusion that returns the plan of one of several ranks.

Products are cut by output columns, those of attention by KV groups: a rank has some of the KV heads
and the query heads that use them, so that it caches its own keys and values alone. What works
column by column or head by head stays cut. Where an op reads whole rows, an ``AllGather`` puts the
ranks' columns together before it. Every sum is computed whole by one rank, so no bit depends on the
number of ranks. Embeddings, norms, and whatever this pass does not know are computed by all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.errors import ConfigError
from penstock.interface.sources import PlanWeight, RowsOf, Share
from penstock.plan.ops import (
    Activate,
    AddNorm,
    AllGather,
    Attention,
    Buffer,
    BufferName,
    Clamp,
    Gate,
    HeadNorm,
    Join,
    KvWrite,
    Linear,
    LinearPart,
    Op,
    Rope,
    RopeWrite,
    Scale,
    ScaleByPosition,
    SoftCap,
    WeightName,
    Xielu,
)
from penstock.plan.plan import Plan

Columns = tuple[int, int]
"""The range of a buffer's columns that a rank has."""

_BY_COLUMN: Final = (Activate, Clamp, Gate, Xielu, Scale, ScaleByPosition, SoftCap)
_BY_HEAD: Final = (HeadNorm, Rope)


def shard(plan: Plan, rank: int, world: int) -> Plan:
    """Return the part of the primitive ``plan`` that ``rank`` of ``world`` ranks runs; all of it
    for one rank.

    Its weights are those rows that it reads, their sources too. Raises ConfigError where the ranks
    cannot share the KV heads.
    """
    if not 0 <= rank < world:
        raise ValueError(f"there is no rank {rank} of {world}")
    if world == 1:
        return plan
    if any(isinstance(op, AddNorm | RopeWrite) for op in plan.ops):
        raise ValueError("a plan is sharded before it is fused")
    if any(layer.value_dim is not None for layer in plan.kv_layers):
        raise ConfigError(
            f"{world} ranks cannot share attention over latents: all heads read one cache of them, "
            "which each rank would have to keep whole; run the model on one"
        )
    if plan.state_layers:
        raise ConfigError(
            f"{world} ranks cannot share layers that keep a state of a sequence yet; run the model "
            "on one"
        )
    if any(layer.rows is not None for layer in plan.kv_layers):
        raise ConfigError(
            f"{world} ranks cannot share convolutions along the sequence yet; run the model on one"
        )
    for heads in {layer.kv_heads for layer in plan.kv_layers}:
        if heads % world:
            fits = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
            raise ConfigError(
                f"{world} ranks cannot share {heads} KV heads evenly; take one of {fits} ranks"
            )
    return _Sharding(plan, rank, world).plan()


class _Sharding:
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
        self._grain = _grains(plan)

    def plan(self) -> Plan:
        for op in self._whole.ops:
            self._append(op)
        for name in self._whole.results:
            self._read_whole(name)
        layers = tuple(
            replace(layer, kv_heads=layer.kv_heads // self._world)
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
        if isinstance(op, Linear):
            self._linear(op)
        elif isinstance(op, Attention):
            self._attention(op)
        elif isinstance(op, KvWrite):
            heads = op.kv_heads // self._world
            assert op.v is not None  # a cache of latents is refused before
            k, v = (self._own(name, op.head_dim * heads) for name in (op.k, op.v))
            self._ops.append(replace(op, k=k, v=v, kv_heads=heads))
        elif _is_local(op) and self._stays_cut(op):
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
        else:
            for name in op.reads:
                self._read_whole(name)
            for name in op.writes:
                self._write_whole(name)
            for name in op.weights:
                self._weights[name] = self._whole.weights[name]
            self._ops.append(op)

    def _linear(self, op: Linear) -> None:
        self._read_whole(op.x)
        (part,) = op.parts
        grain = self._grain.get(op.out, 1)
        columns = self._share(part.n, grain)
        if columns is None:
            self._write_whole(op.out)
            for name in op.weights:
                self._weights[name] = self._whole.weights[name]
            self._ops.append(op)
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
        groups = op.kv_heads // self._world
        heads = op.heads // self._world
        q = self._own(op.q, heads * op.head_dim)
        first = self._rank * heads
        own = (first, first + heads)
        sinks = None if op.sinks is None else self._rows(op.sinks, own)
        columns = (first * op.head_dim, (first + heads) * op.head_dim)
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
        return not isinstance(op, _BY_HEAD) or all(edge % op.head_dim == 0 for edge in columns)

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

    def _rows(self, name: WeightName, rows: Columns) -> WeightName:
        """The rank's rows of a weight, under a name of their own: others may read it whole."""
        own, whole = _share_name(name), self._whole.weights[name]
        share = Share(name, whole.shape, rows)
        self._weights[own] = replace(whole, source=RowsOf(whole.source, (rows,)), share=share)
        return own


def _is_local(op: Op) -> bool:
    """Whether columns, or heads, of the op's output depend on those of its input alone. A Join of
    one buffer converts it."""
    converts = isinstance(op, Join) and len(op.xs) == 1
    return converts or isinstance(op, (*_BY_COLUMN, *_BY_HEAD))


def _share_name(name: str) -> str:
    return f"{name}.share"


def _grains(plan: Plan) -> dict[BufferName, int]:
    """For buffers of queries, keys and values: the columns that belong to one KV head, which ranks
    never divide."""
    grains: dict[BufferName, int] = {}
    for op in reversed(plan.ops):
        if isinstance(op, Attention):
            grains[op.q] = op.heads // op.kv_heads * op.head_dim
        elif isinstance(op, KvWrite):
            grains |= dict.fromkeys(op.reads, op.head_dim)
        elif _is_local(op):
            (written,) = op.writes
            if written in grains:
                grains |= dict.fromkeys(op.reads, grains[written])
    return grains
