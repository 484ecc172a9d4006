"""Observation: a plan in pieces that return what its balanced matrices multiply, and its keys.

How large the columns of an input are tells which factors they should have (``plan/balance.py``),
and how those of keys and queries lie, what keys are centered and scaled by
(``plan/key_columns.py``). So the plan is run once over a short text, before its weights are packed.
Products whose matrices will be rounded to a grid are in 8 bits, and all else is float32: sums are
then exact, or in one order on all processors, and so the factors are the same there. Only a piece
of the plan is in memory at a time, since a model that fits in 4 bits need not fit in 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.interface.plan_weights import PlanWeight
from penstock.interface.sources import RowsOf
from penstock.plan.adapt import without_adapters
from penstock.plan.fuse import heads_apart
from penstock.plan.key_columns import KeyColumns
from penstock.plan.ops import (
    Attention,
    BufferName,
    Embed,
    ExpertLinear,
    KvWrite,
    Linear,
    Op,
    RopeWrite,
    WeightName,
)
from penstock.plan.pieces import Piece, every_row, in_float32, pieces, places_to_cut
from penstock.plan.plan import Plan
from penstock.quant.scheme import GridScheme

PIECE_BYTES: Final = 256 << 20
"""A piece ends where its weights, and what it returns, take so much memory: a layer of a model of 8
billion parameters does."""


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
        whole = _in_eight_bits(without_adapters(plan), len(tokens))
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
        ends = _ends(whole, ops, wanted, len(tokens), piece_bytes)
        return cls(weights, lookups, tuple(pieces(whole, ops, ends, wanted)), keys)


def inputs(plan: Plan) -> set[BufferName]:
    """Return the buffers of ``plan`` whose columns are to be measured."""
    given = (balance for weight in plan.weights.values() for balance in weight.balances)
    return {balance.input for balance in given if balance.input is not None}


def _in_eight_bits(plan: Plan, tokens: int) -> Plan:
    """The plan with products on grids in int8, and with one float32 row for each token
    throughout."""
    plan = in_float32(every_row(plan, tokens), plan.buffers)
    ops: list[Op] = []
    for op in plan.ops:
        if isinstance(op, Linear | ExpertLinear) and isinstance(op.scheme, GridScheme):
            ops.append(replace(op, scheme=GridScheme(8)))
        else:
            ops.append(op)
    return replace(
        plan,
        ops=tuple(ops),
        weights={name: replace(weight, balances=()) for name, weight in plan.weights.items()},
        weight_dtype="float32",
        kv_dtype="float32",
        key_columns=(),
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


def _ends(
    plan: Plan, ops: tuple[Op, ...], wanted: set[BufferName], tokens: int, piece_bytes: int
) -> Iterator[int]:
    """Where pieces end: the op behind the last of each."""
    size = 0
    places = places_to_cut(plan, ops)
    for end, op in enumerate(ops, 1):
        size += _weight_bytes(plan, op)
        size += sum(plan.buffers[name].cols * tokens * 4 for name in op.writes if name in wanted)
        if end == len(ops) or (size >= piece_bytes and end in places):
            yield end
            size = 0


def _weight_bytes(plan: Plan, op: Op) -> int:
    rounded = isinstance(op, Linear | ExpertLinear) and op.scheme is not None
    return sum(math.prod(plan.weights[name].shape) for name in op.weights) * (1 if rounded else 4)
