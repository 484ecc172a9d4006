"""Sharding: a pass between lowering and fusion that returns the plan of one of several ranks.

Products are cut by output columns, those of experts too, and those of attention by KV heads: a
rank has some of the KV heads and the query heads that use them, so that it caches its own keys and
values alone. Where there are fewer KV heads than ranks, some ranks have the same one and divide its
query heads. Over latents, which all heads read, a rank has some of the heads and caches all
latents. Of layers that keep a state it has some of the heads, and of convolutions some of the
columns.

What works column by column or head by head stays cut. Where an op reads whole rows, an
``AllGather`` puts the ranks' columns together before it; what a step returns, such as logits, rank
0 alone has whole (``GatherToFirst``). Every sum is computed whole by one rank, so no bit depends on
the number of ranks. Embeddings, norms, products of fewer columns than ranks,
and whatever this pass does not know are computed by all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import ConfigError
from penstock.models.spec import StateSpec
from penstock.plan.ops import AddNorm, Attention, RopeWrite
from penstock.plan.plan import Plan
from penstock.plan.shard_states import own_state
from penstock.plan.sharding import Sharding
from penstock.plan.state_layers import state_specs

_MOST_RANKS: Final = 1024
"""More are not looked at where a message says how many ranks fit."""


def shard(plan: Plan, rank: int, world: int, states: Sequence[StateSpec] | None = None) -> Plan:
    """Return the part of the primitive ``plan`` that ``rank`` of ``world`` ranks runs; all of it
    for one rank.

    Its weights are those rows that it reads, their sources too, and its groups of cached layers are
    the plan's. ``states``: its layers that keep states, where they are not all of the spec's.
    Raises ConfigError, which says what would fit, where so many ranks cannot share the model.
    """
    if not 0 <= rank < world:
        raise ValueError(f"there is no rank {rank} of {world}")
    if world == 1:
        return plan
    if any(isinstance(op, AddNorm | RopeWrite) for op in plan.ops):
        raise ValueError("a plan is sharded before it is fused")
    states = state_specs(plan.spec.layers) if states is None else states
    found = _obstacle(plan, states, world)
    if found is not None:
        raise ConfigError(f"{found}; take {_fitting(plan, states)}")
    return Sharding(plan, states, rank, world).plan()


def _obstacle(plan: Plan, states: Sequence[StateSpec], world: int) -> str | None:
    """Return why so many ranks cannot share the plan; None if they can."""
    for size in {layer.head_dim for layer in plan.kv_layers if layer.rows is not None}:
        if size % world:
            return (
                f"{world} ranks cannot share the {size} columns of convolutions along the sequence "
                "evenly"
            )
    for heads in {op.heads for op in plan.ops if isinstance(op, Attention)}:
        if heads < world:
            return f"{world} ranks cannot share {heads} heads of attention"
    for spec in set(states):
        try:
            own_state(spec, 0, world)
        except ConfigError as error:
            return str(error)
    return None


def _fitting(plan: Plan, states: Sequence[StateSpec]) -> str:
    """Return how many ranks can share the plan, in words."""
    worlds = range(1, _MOST_RANKS + 1)
    fits = [world for world in worlds if _obstacle(plan, states, world) is None]
    if fits == list(range(1, len(fits) + 1)):
        return "one rank" if len(fits) == 1 else f"at most {len(fits)} ranks"
    return f"one of {', '.join(map(str, fits))} ranks"
