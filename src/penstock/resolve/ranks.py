"""Decides the number of ranks that share a model, as far as it needs no plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.backends.backend import Backend, Obstacle
from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.resolve.inputs import Reasons

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
    return RanksDecision(world, {"tensor_parallel": why})


def only_alone(config: EngineConfig, backend: Backend) -> Obstacle | None:
    """Return that ``backend`` runs no ranks, where several are asked for."""
    if config.tensor_parallel == 1 or backend.runs_ranks:
        return None
    return Obstacle(
        f"tensor_parallel {config.tensor_parallel} needs a backend that runs one of several ranks, "
        f"which the {backend.name} backend does not do yet",
        "choose --backend cpu, or leave tensor_parallel out",
    )
