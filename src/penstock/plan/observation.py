"""Observation: a plan in pieces that return what its balanced matrices multiply, and its keys.

How large the columns of an input are tells which factors they should have (``plan/balance.py``),
and how those of keys and queries lie, what keys are centered and scaled by
(``plan/key_columns.py``). So the plan is run once over a short text, before its weights are rounded
to 4 bits. Products are
rounded to 8 bits, and all else is float32: sums are then exact, or in one order on all processors,
and so the factors are the same there. Only a piece of the plan is in memory at a time, since a
model that fits in 4 bits need not fit in 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.interface.plan_weights import PlanWeight
from penstock.interface.sources import RowsOf
from penstock.plan.fuse import heads_apart
from penstock.plan.key_columns import KeyColumns
from penstock.plan.ops import (
    Argmax,
    Attention,
    Buffer,
    BufferName,
    Element,
    Embed,
    ExpertLinear,
    Features,
    GatedDelta,
    Join,
    KvWrite,
    Linear,
    Op,
    RopeWrite,
    Rows,
    SelectiveScan,
    SelectRows,
    StateConv,
    WeightName,
)
from penstock.plan.plan import Plan
from penstock.quant.scheme import GridScheme

PIECE_BYTES: Final = 256 << 20
"""A piece ends where its weights, and what it returns, take so much memory: a layer of a model of 8
billion parameters does."""

_STATE_OPS = StateConv, GatedDelta, SelectiveScan
_LOGITS, _ARGMAX, _RETURNED = "no logits", "no argmax", "returned"


@dataclass(frozen=True)
class Piece:
    """A run of a plan's ops as a plan of its own, for steps that select every row.

    Its features are the buffers ``given``, side by side, and its hidden states ``observed`` and
    then ``made``, float32. It has no logits.
    """

    plan: Plan
    given: tuple[Buffer, ...]
    observed: tuple[Buffer, ...]
    """What balanced matrices multiply, their ``Balance.input``, and keys and queries."""
    made: tuple[Buffer, ...]
    """What later pieces are given."""


@dataclass(frozen=True)
class ObservedKeys:
    """The buffers of a layer's keys, as they are cached, and of queries that read them."""

    columns: KeyColumns
    keys: BufferName
    queries: tuple[BufferName, ...]


@dataclass(frozen=True)
class Observation:
    """The pieces of a plan in their order, up to the last that observes something."""

    weights: dict[WeightName, PlanWeight]
    """All weights of the plan, none of them balanced, and those of ``lookups``, to be read as
    float32."""
    lookups: dict[BufferName, WeightName]
    """Buffers that pieces are given: the rows that the tokens look up in tables."""
    pieces: tuple[Piece, ...]
    keys: tuple[ObservedKeys, ...]

    @classmethod
    def of(cls, plan: Plan, tokens: Sequence[int], piece_bytes: int = PIECE_BYTES) -> Observation:
        """Return the observation of a balanced, fused ``plan`` by a text of these ``tokens``.

        How it is cut into pieces changes none of the values. Pieces share no cache: where a layer
        reads what another has cached, both are in one.
        """
        whole = _in_eight_bits(plan, len(tokens))
        if plan.key_columns:
            whole = _with_keys(whole)
        keys = tuple(_observed_keys(whole, columns) for columns in plan.key_columns)
        wanted = inputs(plan) | {name for each in keys for name in (each.keys, *each.queries)}
        last = max((i for i, op in enumerate(whole.ops) if wanted & set(op.writes)), default=-1)
        run = whole.ops[: last + 1]
        rows = tuple((token, token + 1) for token in tokens)
        weights, lookups = dict(whole.weights), {}
        for op in run:
            if isinstance(op, Embed):
                lookups[op.out] = f"{op.weight} of the text"
                table = whole.weights[op.weight]
                weights[lookups[op.out]] = replace(table, source=RowsOf(table.source, rows))
        ops = tuple(op for op in run if not isinstance(op, Embed))
        parts = _cut(whole, ops, wanted, len(tokens), piece_bytes)
        pieces = tuple(
            _piece(whole, ops[first:end], wanted, carried, carries)
            for first, end, carried, carries in parts
        )
        return cls(weights, lookups, pieces, keys)


def inputs(plan: Plan) -> set[BufferName]:
    """Return the buffers of ``plan`` whose columns are to be measured."""
    given = (balance for weight in plan.weights.values() for balance in weight.balances)
    return {balance.input for balance in given if balance.input is not None}


def _in_eight_bits(plan: Plan, tokens: int) -> Plan:
    """The plan with products on grids in int8, and with one row for each token throughout."""
    ops: list[Op] = []
    for op in plan.ops:
        match op:
            case Linear(scheme=GridScheme()) | ExpertLinear(scheme=GridScheme()):
                ops.append(replace(op, scheme=GridScheme(8)))
            case SelectRows(out=out) if out == plan.taps:
                pass
            case SelectRows(x, out):
                ops.append(Join((x,), out))
            case _:
                ops.append(op)
    return replace(
        plan,
        ops=tuple(ops),
        weights={name: replace(weight, balances=()) for name, weight in plan.weights.items()},
        buffers={name: _widened(buffer) for name, buffer in plan.buffers.items()},
        weight_dtype="float32",
        kv_dtype="float32",
        key_columns=(),
        max_positions=tokens,
    )


def _with_keys(plan: Plan) -> Plan:
    """The plan with its rotated keys in buffers of their own."""
    ops: list[Op] = []
    buffers = dict(plan.buffers)
    for op in plan.ops:
        if isinstance(op, RopeWrite):
            joined = ops.pop()
            assert isinstance(joined, Linear)
            ops += heads_apart(joined, op, buffers)
        else:
            ops.append(op)
    return replace(plan, ops=tuple(ops), buffers=buffers)


def _observed_keys(plan: Plan, columns: KeyColumns) -> ObservedKeys:
    (keys,) = (op.k for op in plan.ops if isinstance(op, KvWrite) and op.layer == columns.layer)
    queries = (op.q for op in plan.ops if isinstance(op, Attention) and op.layer == columns.layer)
    return ObservedKeys(columns, keys, tuple(queries))


def _widened(buffer: Buffer) -> Buffer:
    element: Element = "int32" if buffer.element == "int32" else "float32"
    return replace(buffer, rows=replace(buffer.rows, base="T"), element=element)


def _cut(
    plan: Plan, ops: tuple[Op, ...], wanted: set[BufferName], tokens: int, piece_bytes: int
) -> Iterator[tuple[int, int, list[BufferName], list[BufferName]]]:
    """The pieces: their first op, the op behind them, and what is carried there and on."""
    carried = list(_carried(ops))
    first, size = 0, 0
    closed = _closed(ops)
    for end, op in enumerate(ops, 1):
        size += _weight_bytes(plan, op)
        size += sum(plan.buffers[name].cols * tokens * 4 for name in op.writes if name in wanted)
        fits = all(map(_can_be_given, (plan.buffers[name] for name in carried[end])))
        if end == len(ops) or (size >= piece_bytes and fits and closed[end]):
            yield first, end, carried[first], carried[end]
            first, size = end, 0


def _can_be_given(buffer: Buffer) -> bool:
    return buffer.element == "float32" and buffer.rows == Rows.TOKENS


def _carried(ops: tuple[Op, ...]) -> Iterable[list[BufferName]]:
    """What ops from each on read of those before it, for every op and the end."""
    carried: list[list[BufferName]] = [[]]
    for op in reversed(ops):
        live = [name for name in carried[-1] if name not in op.writes or name in op.reads]
        carried.append([*live, *(name for name in op.reads if name not in live)])
    return reversed(carried)


def _closed(ops: tuple[Op, ...]) -> list[bool]:
    """Whether no cached layer, and no state, is used both before an op and from it on."""
    users: dict[tuple[bool, int], tuple[int, int]] = {}
    for i, op in enumerate(ops):
        layer = getattr(op, "layer", None)
        if layer is not None:
            key = isinstance(op, _STATE_OPS), layer
            users[key] = users.get(key, (i, i))[0], i
    return [
        not any(first < i <= last for first, last in users.values()) for i in range(len(ops) + 1)
    ]


def _piece(
    whole: Plan,
    ops: tuple[Op, ...],
    wanted: set[BufferName],
    given: list[BufferName],
    made: list[BufferName],
) -> Piece:
    buffers = {name: whole.buffers[name] for op in ops for name in (*op.reads, *op.writes)} | {
        name: whole.buffers[name] for name in given
    }
    observed = [name for op in ops for name in op.writes if name in wanted]
    body: list[Op] = []
    first = 0
    for name in given:
        body.append(Features(name, first, buffers[name].cols))
        first += buffers[name].cols
    first = 0

    def put(name: BufferName) -> None:
        nonlocal first
        body.append(SelectRows(name, _RETURNED, first))
        first += buffers[name].cols

    for op in ops:
        body.append(op)
        for name in op.writes:
            if name in wanted:
                put(name)
    for name in made:
        put(name)
    body.append(Argmax(_LOGITS, _ARGMAX))
    columns = sum(whole.buffers[name].cols for name in (*observed, *made))
    buffers |= {
        _RETURNED: Buffer(_RETURNED, Rows.SELECTED, columns, "float32"),
        _LOGITS: Buffer(_LOGITS, Rows.LOGITS, 1, "float32"),
        _ARGMAX: Buffer(_ARGMAX, Rows.LOGITS, 1, "int32"),
    }
    read = {name for op in ops for name in op.weights}
    plan = replace(
        whole,
        ops=tuple(body),
        weights={name: weight for name, weight in whole.weights.items() if name in read},
        buffers=buffers,
        logits=_LOGITS,
        argmax=_ARGMAX,
        hidden=_RETURNED,
        taps=None,
        more_logits=(),
    )

    def named(names: Iterable[BufferName]) -> tuple[Buffer, ...]:
        return tuple(whole.buffers[name] for name in names)

    return Piece(plan, named(given), named(observed), named(made))


def _weight_bytes(plan: Plan, op: Op) -> int:
    rounded = isinstance(op, Linear | ExpertLinear) and op.scheme is not None
    return sum(math.prod(plan.weights[name].shape) for name in op.weights) * (1 if rounded else 4)
