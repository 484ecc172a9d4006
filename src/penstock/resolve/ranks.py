"""Checks of the number of ranks that share a model, which need no plan."""

from __future__ import annotations

from typing import Final

from penstock.backends.backend import Backend, Obstacle
from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.resolve.inputs import Reasons

_MOST_RANKS: Final = 256
"""More processes are taken for a mistake."""


def check_ranks(config: EngineConfig) -> Reasons:
    """Return why there are so many ranks. Raises ConfigError where there cannot be, whatever the
    model: ``plan.shard`` refuses what a model's heads and columns do not allow."""
    world = config.tensor_parallel
    if not 1 <= world <= _MOST_RANKS:
        raise ConfigError(
            f"tensor_parallel must be 1 to {_MOST_RANKS}, not {world}; leave it out for one process"
        )
    if world == 1:
        return {}
    if config.speculative is not None:
        raise ConfigError(
            f"tensor_parallel {world} does not go with speculative yet; leave one of them out"
        )
    return {"tensor_parallel": "as asked: so many processes, each with a part of every layer"}


def only_alone(config: EngineConfig, backend: Backend) -> Obstacle | None:
    """Return that ``backend`` runs no ranks, where several are asked for."""
    if config.tensor_parallel == 1 or backend.runs_ranks:
        return None
    return Obstacle(
        f"tensor_parallel {config.tensor_parallel} needs a backend that runs one of several ranks, "
        f"which the {backend.name} backend does not do yet",
        "choose --backend cpu, or leave tensor_parallel out",
    )
