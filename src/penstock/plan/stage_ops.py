"""What becomes of a plan's ops in a stage of a pipeline (``plan/stages.py``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from penstock.plan.ops import (
    Attention,
    Buffer,
    BufferName,
    Features,
    GatedDelta,
    Join,
    KvWrite,
    Op,
    RopeWrite,
    SelectiveScan,
    SelectRows,
    ShortConv,
    StateConv,
)
from penstock.plan.plan import Plan

CACHED: Final = (Attention, KvWrite, RopeWrite, ShortConv)
"""Ops that use a layer's cache."""
STATEFUL: Final = (GatedDelta, SelectiveScan, StateConv)
"""Ops that use a layer's state."""


def handing_on_taps(plan: Plan) -> Plan:
    """Return ``plan`` with each of its taps, of which only selected rows are wanted, as a buffer of
    all rows that is read at the end: so it is handed on to the last stage, which selects."""
    buffers, ops, ends = dict(plan.buffers), list[Op](), list[Op]()
    for op in plan.ops:
        if not isinstance(op, SelectRows) or op.out != plan.taps:
            ops.append(op)
            continue
        tapped = replace(buffers[op.x], name=f"{op.out}.{len(ends)}")
        buffers[tapped.name] = tapped
        ops.append(Join((op.x,), tapped.name))
        ends.append(replace(op, x=tapped.name))
    return replace(plan, ops=(*ops, *ends), buffers=buffers)


def taps_taken(plan: Plan, ops: Sequence[Op], is_last: bool) -> tuple[Op, ...]:
    """Undo in the ``ops`` of a stage what :func:`handing_on_taps` has made of the taps that are
    not handed on, and have the last stage select first of those that are."""
    ends = {op.x: op for op in ops if isinstance(op, SelectRows) and op.out == plan.taps}
    if not is_last or not ends:
        return tuple(ops)
    own: list[Op] = []
    for op in ops:
        if isinstance(op, Join) and op.out in ends:
            own.append(replace(ends.pop(op.out), x=op.xs[0]))
        elif not isinstance(op, SelectRows) or op.out != plan.taps:
            own.append(op)
    return (*ends.values(), *own)


def arrival(entering: Sequence[Buffer], buffers: dict[BufferName, Buffer]) -> list[Op]:
    """Ops that put a step's features into the buffers that enter: those of 16 bits are rounded to
    what they were."""
    ops: list[Op] = []
    first = 0
    for buffer in entering:
        if buffer.element == "float32":
            ops.append(Features(buffer.name, first, buffer.cols))
        else:
            wide = replace(buffer, name=f"{buffer.name}.entering", element="float32")
            buffers[wide.name] = wide
            ops += [Features(wide.name, first, buffer.cols), Join((wide.name,), buffer.name)]
        first += buffer.cols
    return ops


def moved(op: Op, by: int) -> Op:
    """``op`` with its cached layer, or its state, counted from the stage's first."""
    if not isinstance(op, (*CACHED, *STATEFUL)):
        return op
    moved: Any = op
    return replace(moved, layer=moved.layer - by)  # type: ignore[no-any-return]
