"""Where a plan can be cut between layers, and what is alive there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.plan.ops import BufferName, Op, Rows, WeightName
from penstock.plan.plan import Plan
from penstock.plan.stage_ops import CACHED, STATEFUL


@dataclass(frozen=True)
class Cut:
    """A place between two ops at which a plan can be cut."""

    place: int
    layer: int
    """The layer that follows."""
    crossing: tuple[BufferName, ...] = ()
    """What later ops read of what earlier ones wrote, of cuts that were chosen."""


def layer_cuts(plan: Plan) -> list[Cut]:
    """The places at which ``plan`` can be cut, at most one before each layer but the first."""
    weighted: dict[int, list[int]] = {}
    for i, op in enumerate(plan.ops):
        for layer in _layers(op.weights):
            weighted.setdefault(layer, []).append(i)
    alive, separate = alive_at(plan.ops), apart(plan.ops)
    found: list[Cut] = []
    for layer in range(1, len(plan.spec.layers)):
        before, after = weighted.get(layer - 1), weighted.get(layer)
        if not before or not after:
            continue
        places = range(max(before) + 1, min(after) + 1)
        options = [i for i in places if i in separate and _can_cross(plan, alive[i])]
        if options:
            place = min(options, key=lambda i: _row_bytes(plan, alive[i]))
            found.append(Cut(place, layer))
    return found


def alive_at(ops: Sequence[Op]) -> list[tuple[BufferName, ...]]:
    """The buffers of each place, that of the end too, that the ops from there on read before they
    write them."""
    alive: dict[BufferName, None] = {}
    found = [tuple(alive)]
    for op in reversed(ops):
        after = {name: None for name in alive if name not in op.writes}
        alive = dict.fromkeys(op.reads) | after
        found.append(tuple(alive))
    return found[::-1]


def apart(ops: Sequence[Op]) -> set[int]:
    """The places on both sides of which no layer's cache and no layer's state is used."""
    found = set(range(len(ops) + 1))
    for kinds in (CACHED, STATEFUL):
        used: dict[int, tuple[int, int]] = {}  # by layer, the first op that uses it and the last
        for i, op in enumerate(ops):
            for layer in indices((op,), kinds):
                used[layer] = (used.get(layer, (i, i))[0], i)
        for first, last in used.values():
            found -= set(range(first + 1, last + 1))
    return found


def _layers(weights: Iterable[WeightName]) -> set[int]:
    return {int(name.split(".")[1]) for name in weights if name.startswith("layers.")}


def _can_cross(plan: Plan, names: Iterable[BufferName]) -> bool:
    buffers = [plan.buffers[name] for name in names]
    return all(each.rows == Rows.TOKENS and each.element != "int32" for each in buffers)


def indices(ops: Iterable[Op], kinds: tuple[type[Op], ...]) -> set[int]:
    """The layers, by their places in the plan's caches or states, that ops of these kinds use."""
    return {op.layer for op in ops if isinstance(op, kinds)}  # type: ignore[attr-defined]


def _row_bytes(plan: Plan, names: Iterable[BufferName]) -> int:
    return sum(plan.buffers[name].row_bytes for name in names)
