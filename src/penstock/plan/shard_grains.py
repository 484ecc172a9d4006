"""Which columns of a plan's buffers ranks may have apart, and which they never divide."""

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

_BY_COLUMN: Final = (Activate, Add, Clamp, Gate, Xielu, Scale, ScaleByPosition, SoftCap)
BY_HEAD: Final = (HeadNorm, Rope)
"""Ops that take each head's columns together."""


def is_local(op: Op) -> bool:
    """Whether columns, or heads, of the op's output depend on those of its inputs alone. A Join of
    one buffer converts it."""
    converts = isinstance(op, Join) and len(op.xs) == 1
    return converts or isinstance(op, (*_BY_COLUMN, *BY_HEAD))


def grains(plan: Plan, world: int) -> dict[BufferName, int]:
    """Columns that ranks never divide, of each buffer of queries, keys or values. These belong to
    one KV head, or to all of a rank's heads where heads read latents."""
    found: dict[BufferName, int] = {}
    for op in reversed(plan.ops):
        if isinstance(op, Attention):
            together = op.heads // (world if op.value_dim is not None else op.kv_heads)
            found[op.q] = together * op.head_dim
        elif isinstance(op, KvWrite):
            if op.v is not None:
                found |= dict.fromkeys(op.reads, op.head_dim)
        elif isinstance(op, SelectiveScan):
            found[op.dt] = op.heads // world
        elif isinstance(op, HeadLinear):
            if op.out in found:
                found[op.x] = found[op.out] // op.n * op.k
        elif isinstance(op, Join) and op.heads is not None:
            if op.out in found:
                heads = found[op.out] * op.heads // plan.buffers[op.out].cols
                found |= {x: plan.buffers[x].cols // op.heads * heads for x in op.xs}
        elif is_local(op):
            (written,) = op.writes
            if written in found:
                found |= dict.fromkeys(op.reads, found[written])
    return found
