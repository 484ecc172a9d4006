"""Which heads of attention each of several ranks has."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.plan.ops import Attention

Range = tuple[int, int]
"""The first of some columns, rows or heads, and the one behind the last."""
Cut = tuple[Range, ...]
"""What each rank has. Ranks may have the same."""


@dataclass(frozen=True)
class HeadCuts:
    """The heads of one attention op by rank."""

    queries: Cut
    """No two ranks have the same one, and each has one at least."""
    kv: Cut
    """Where there are more ranks than KV heads several have the same one, and each caches it."""


def evenly(count: int, world: int) -> Cut:
    """``count`` in order, as evenly as can be; a rank may have none."""
    return tuple((count * r // world, count * (r + 1) // world) for r in range(world))


def head_cuts(op: Attention, world: int) -> HeadCuts:
    """Return the heads of each of ``world`` ranks, at most as many as there are query heads.

    A rank has whole KV heads with all of their query heads. With more ranks than KV heads it has
    some of the query heads of one, which it shares with its neighbours. Latents are read by all
    heads, so that each rank has some heads and all latents.
    """
    if op.value_dim is not None:
        return HeadCuts(evenly(op.heads, world), ((0, op.kv_heads),) * world)
    group = op.heads // op.kv_heads
    if world <= op.kv_heads:
        kv = evenly(op.kv_heads, world)
        return HeadCuts(tuple((a * group, b * group) for a, b in kv), kv)
    of = [op.kv_heads * rank // world for rank in range(world)]
    queries = []
    for head in range(op.kv_heads):
        first = head * group
        queries += [(first + a, first + b) for a, b in evenly(group, of.count(head))]
    return HeadCuts(tuple(queries), tuple((head, head + 1) for head in of))
