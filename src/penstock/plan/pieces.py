"""Pieces: a plan's ops cut into plans of their own, which return what some buffers hold.

A piece is run over the tokens of a text by itself: it is given what earlier pieces have made, and
hands on what later ones need, beside the buffers that are wanted. So only the weights of one piece
are in memory at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from penstock.plan.cuts import alive_at, apart
from penstock.plan.ops import (
    Buffer,
    BufferName,
    Features,
    Join,
    Op,
    Rows,
    SelectRows,
)
from penstock.plan.plan import Plan


@dataclass(frozen=True)
class Piece:
    """A run of a plan's ops as a plan of its own, which like a stage of a pipeline has no logits.

    Its features are the buffers ``given``, side by side, and what leaves it (``Plan.leaving``) are
    ``observed`` and then ``made``. ``given`` and ``made`` are float32 with a row for each token.
    """

    plan: Plan
    given: tuple[Buffer, ...]
    observed: tuple[Buffer, ...]
    """The buffers of its ops that are wanted, with one or more rows for each token. What is
    returned of them is float32 or int32."""
    made: tuple[Buffer, ...]
    """What later pieces are given."""


def every_row(plan: Plan, tokens: int) -> Plan:
    """Return ``plan`` with one row for each token throughout, for a text of so many, and without
    taps."""
    ops: list[Op] = []
    for op in plan.ops:
        if not isinstance(op, SelectRows):
            ops.append(op)
        elif op.out != plan.taps:
            ops.append(Join((op.x,), op.out))
    return replace(
        plan,
        ops=tuple(ops),
        buffers={name: _of_tokens(buffer) for name, buffer in plan.buffers.items()},
        max_positions=tokens,
    )


def _of_tokens(buffer: Buffer) -> Buffer:
    return replace(buffer, rows=replace(buffer.rows, base="T"))


def in_float32(plan: Plan, names: Iterable[BufferName]) -> Plan:
    """Return ``plan`` with these buffers in float32, but for those that have indices."""
    buffers = dict(plan.buffers)
    for name in names:
        if buffers[name].element != "int32":
            buffers[name] = replace(buffers[name], element="float32")
    return replace(plan, buffers=buffers)


def places_to_cut(plan: Plan, ops: tuple[Op, ...]) -> set[int]:
    """The places between ``ops`` of ``plan``, which :func:`every_row` has made, where a piece may
    end: all that is carried across is float32, a row for each token. Pieces share no cache: where a
    layer reads what another has cached, both are in one."""
    alive, separate = alive_at(ops), apart(ops)
    return {
        place
        for place in range(1, len(ops))
        if place in separate and all(_can_be_given(plan.buffers[name]) for name in alive[place])
    }


def _can_be_given(buffer: Buffer) -> bool:
    return buffer.element == "float32" and buffer.rows == Rows.TOKENS


def pieces(
    whole: Plan, ops: tuple[Op, ...], ends: Iterable[int], wanted: Collection[BufferName]
) -> Iterator[Piece]:
    """``ops`` of ``whole`` as pieces, each of which ends before an op of ``ends``, ascending; the
    last is their number. They return what is in the buffers ``wanted``. How ops are cut changes
    none of the values."""
    alive = alive_at(ops)
    first = 0
    for end in ends:
        yield _piece(whole, ops[first:end], wanted, alive[first], alive[end])
        first = end


def _piece(
    whole: Plan,
    ops: tuple[Op, ...],
    wanted: Collection[BufferName],
    given: tuple[BufferName, ...],
    made: tuple[BufferName, ...],
) -> Piece:
    buffers = {name: whole.buffers[name] for op in ops for name in (*op.reads, *op.writes)} | {
        name: whole.buffers[name] for name in given
    }
    body: list[Op] = []
    first = 0
    for name in given:
        body.append(Features(name, first, buffers[name].cols))
        first += buffers[name].cols
    leaving: list[BufferName] = []
    observed: list[BufferName] = []
    for op in ops:
        body.append(op)
        for name in op.writes:
            if name in wanted and buffers[name].element == "int32":
                observed.append(name)  # indices, which one op alone writes
                leaving.append(name)
            elif name in wanted:
                # Later ops may write into the buffer.
                kept = replace(buffers[name], name=f"{name} observed", element="float32")
                buffers[kept.name] = kept
                body.append(Join((name,), kept.name))
                observed.append(name)
                leaving.append(kept.name)
    read = {name for op in ops for name in op.weights}
    plan = replace(
        whole,
        ops=tuple(body),
        weights={name: weight for name, weight in whole.weights.items() if name in read},
        buffers=buffers,
        logits=None,
        argmax=None,
        hidden=None,
        taps=None,
        more_logits=(),
        leaving=(*leaving, *made),
    )

    def named(names: Iterable[BufferName]) -> tuple[Buffer, ...]:
        return tuple(whole.buffers[name] for name in names)

    return Piece(plan, named(given), named(observed), named(made))
