"""Which columns of a plan's buffers ranks may have apart, and which each of them is to have."""

from __future__ import annotations

from typing import Final

from penstock.plan.ops import (
    Activate,
    Add,
    Attention,
    BufferName,
    Clamp,
    Gate,
    HeadLinear,
    HeadNorm,
    Join,
    KvWrite,
    Op,
    Rope,
    Scale,
    ScaleByPosition,
    SelectiveScan,
    SoftCap,
    Xielu,
)
from penstock.plan.plan import Plan
from penstock.plan.shard_heads import Cut, evenly, head_cuts

_BY_COLUMN: Final = (Activate, Add, Clamp, Gate, Xielu, Scale, ScaleByPosition, SoftCap)
BY_HEAD: Final = (HeadNorm, Rope)
"""Ops that take each head's columns together."""


def is_local(op: Op) -> bool:
    """Whether columns, or heads, of the op's output depend on those of its inputs alone. A Join of
    one buffer converts it."""
    converts = isinstance(op, Join) and len(op.xs) == 1
    return converts or isinstance(op, (*_BY_COLUMN, *BY_HEAD))


def kept_apart(plan: Plan, world: int) -> dict[BufferName, Cut]:
    """Return the columns that each rank is to have of each buffer of queries, keys or values, and
    of what these are made of column by column or head by head: those of its heads."""
    found: dict[BufferName, Cut] = {}
    for op in reversed(plan.ops):
        if isinstance(op, Attention):
            found[op.q] = _times(head_cuts(op, world).queries, op.head_dim)
        elif isinstance(op, KvWrite):
            if op.v is not None:
                kv = own_kv_heads(plan, op.layer, world)
                found |= dict.fromkeys(op.reads, _times(kv, op.head_dim))
        elif isinstance(op, SelectiveScan):
            found[op.dt] = evenly(op.heads, world)
        elif isinstance(op, HeadLinear):
            if op.out in found:
                found[op.x] = _times(found[op.out], op.k, op.n)
        elif isinstance(op, Join) and op.heads is not None:
            if op.out in found:
                size = plan.buffers[op.out].cols // op.heads
                for x in op.xs:
                    found[x] = _times(found[op.out], plan.buffers[x].cols // op.heads, size)
        elif is_local(op):
            (written,) = op.writes
            if written in found:
                found |= dict.fromkeys(op.reads, found[written])
    return found


def own_kv_heads(plan: Plan, layer: int, world: int) -> Cut:
    """Return the KV heads that each rank caches of a cached layer, by the attention that reads
    it."""
    readers = (op for op in plan.ops if isinstance(op, Attention) and op.layer == layer)
    return head_cuts(next(readers), world).kv


def _times(cut: Cut, factor: int, divisor: int = 1) -> Cut:
    return tuple((a // divisor * factor, b // divisor * factor) for a, b in cut)
