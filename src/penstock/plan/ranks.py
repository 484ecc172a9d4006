"""The fused plans of all ranks that share a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from penstock.models.spec import StateSpec
from penstock.plan.fuse import fuse
from penstock.plan.key_columns import KeyColumns, key_columns
from penstock.plan.plan import Plan
from penstock.plan.shard import shard
from penstock.plan.shard_columns import own_kv_heads


def rank_plans(
    primitive: Plan, whole: Plan, world: int, states: Sequence[StateSpec] | None = None
) -> tuple[Plan, ...]:
    """Return the plan of each of ``world`` ranks: its part of ``primitive``, fused.

    ``whole`` is the plan of one process: what it makes of ``primitive``. Its matrices are balanced
    and its keys scaled, and so are the parts that ranks have of them: by the same factors, which
    are of whole matrices. ``states`` are as in :func:`~penstock.plan.shard.shard`. Raises
    ConfigError where so many ranks cannot share the model.
    """
    shares = (shard(primitive, rank, world, states) for rank in range(world))
    return tuple(_as_whole(whole, fuse(own)) for own in shares)


def _as_whole(whole: Plan, own: Plan) -> Plan:
    """A rank's plan, balanced and scaled as that of one process."""
    balances = {name: weight.balances for name, weight in whole.weights.items()}
    weights = {
        name: replace(
            weight, balances=balances[name if weight.share is None else weight.share.name]
        )
        for name, weight in own.weights.items()
    }
    own = replace(own, weights=weights, max_positions=whole.max_positions)
    if whole.key_columns:
        own = replace(own, key_columns=key_columns(own.ops, own.kv_layers))
    return own


def own_key_columns(
    whole: Plan, columns: KeyColumns, values: NDArray[np.float32], rank: int, world: int
) -> NDArray[np.float32]:
    """Return the centers and factors of the rank's heads of a layer, of those of all heads."""
    first, end = own_kv_heads(whole, columns.layer, world)[rank]
    heads = values.reshape(2, columns.kv_heads, columns.head_dim)[:, first:end]
    own: NDArray[np.float32] = np.ascontiguousarray(heads).reshape(2, -1)
    return own
