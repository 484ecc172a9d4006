"""Decides the number of ranks that share a model, as far as it needs no plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.backends.backend import Backend, Obstacle
from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.hardware import Hardware
from penstock.resolve.inputs import Reasons
from penstock.resolve.stages import count_stages

_MOST_RANKS: Final = 256
"""More processes are taken for a mistake."""


@dataclass(frozen=True)
class RanksDecision:
    """The processes that share every layer."""

    world: int
    reasons: Reasons
    """Empty for one process."""


def decide_ranks(config: EngineConfig) -> RanksDecision:
    """Return the ranks asked for. Raises ConfigError where there cannot be so many, whatever the
    model: ``plan.shard`` refuses what a model's heads and columns do not allow."""
    world = config.tensor_parallel
    if not 1 <= world <= _MOST_RANKS:
        raise ConfigError(
            f"tensor_parallel must be 1 to {_MOST_RANKS}, not {world}; leave it out for one process"
        )
    if world == 1:
        return RanksDecision(1, {})
    why = "as asked: so many processes, each with a part of every layer"
    if count_stages(config) > 1:
        why = "as asked: so many processes for each stage, each with a part of its layers"
    return RanksDecision(world, {"tensor_parallel": why})


def only_alone(
    config: EngineConfig, backend: Backend, hardware: Hardware, drafts: bool
) -> Obstacle | None:
    """Return what keeps ``backend`` from running the ranks that are asked for, if there are
    several. ``drafts``: whether a model or heads draft."""
    world = config.tensor_parallel
    if world == 1:
        return None
    return backend.obstacle_for_ranks(world, hardware, drafts)
