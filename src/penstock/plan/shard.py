"""Sharding: a pass between lowering and fusion that returns the plan of one of several ranks.

Products are cut by output columns, those of experts too, and those of attention by KV groups: a
rank has some of the KV heads and the query heads that use them, so that it caches its own keys and
values alone. Over latents, which all heads read, it has some of the heads and caches all latents.
Of layers that keep a state it has some of the heads, and of convolutions some of the columns.

What works column by column or head by head stays cut. Where an op reads whole rows, an
``AllGather`` puts the ranks' columns together before it. Every sum is computed whole by one rank,
so no bit depends on the number of ranks. Embeddings, norms, and whatever this pass does not know
are computed by all.
"""

from __future__ import annotations

from penstock.errors import ConfigError
from penstock.plan.ops import AddNorm, Attention, RopeWrite
from penstock.plan.plan import Plan
from penstock.plan.sharding import Sharding


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
    for size in {layer.head_dim for layer in plan.kv_layers if layer.rows is not None}:
        if size % world:
            raise ConfigError(
                f"{world} ranks cannot share the {size} columns of convolutions along the sequence "
                "evenly; take a number of ranks that divides these"
            )
    for kind, heads in {_shared_heads(op) for op in plan.ops if isinstance(op, Attention)}:
        if heads % world:
            fits = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
            raise ConfigError(
                f"{world} ranks cannot share {heads} {kind} evenly; take one of {fits} ranks"
            )
    return Sharding(plan, rank, world).plan()


def _shared_heads(op: Attention) -> tuple[str, int]:
    """The heads that ranks share, and what they are called: with latents, which each keeps all of,
    those that read them."""
    return ("heads", op.heads) if op.value_dim is not None else ("KV heads", op.kv_heads)
