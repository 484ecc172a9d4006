"""Decides the stages of a pipeline, as far as it needs no plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.backends.backend import Backend, Obstacle
from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.peers.address import Address
from penstock.resolve.inputs import Reasons

_MOST_STAGES: Final = 64
"""More processes are taken for a mistake."""


@dataclass(frozen=True)
class StagesDecision:
    """The processes that have a part of the layers each."""

    count: int
    addresses: tuple[str, ...]
    """Where the first of them wait; the others are processes of this machine, the engine's own the
    last."""
    reasons: Reasons
    """Empty for one process."""


def decide_stages(config: EngineConfig) -> StagesDecision:
    """Return the stages asked for. Raises ConfigError where there cannot be so many, whatever the
    model: ``plan.stages`` refuses what a model's layers do not allow."""
    count, addresses = count_stages(config), stage_addresses(config)
    if count == 1:
        if config.pipeline_secret_file is not None:
            raise ConfigError(
                "pipeline_secret_file has no effect without pipeline_stages; leave it out"
            )
        return StagesDecision(1, (), {})
    if len(addresses) >= count:
        raise ConfigError(
            f"pipeline_parallel {count} has {count - 1} stages besides the engine's own, which is "
            f"the last, and pipeline_stages names {len(addresses)}; set pipeline_parallel to "
            f"{len(addresses) + 1}, or leave it out"
        )
    if config.pipeline_secret_file is not None and not addresses:
        raise ConfigError(
            "pipeline_secret_file has no effect where all stages are processes of this machine; "
            "leave it out"
        )
    processes = "groups of ranks" if config.tensor_parallel > 1 else "processes"
    why = f"as asked: so many {processes}, each with a part of the layers"
    reasons = {"pipeline_parallel": why}
    if addresses:
        reasons["pipeline_stages"] = "the first stages, as asked; the others are on this machine"
    return StagesDecision(count, addresses, reasons)


def stage_addresses(config: EngineConfig) -> tuple[str, ...]:
    """Return the addresses in ``pipeline_stages``. Raises ConfigError for what is none."""
    if config.pipeline_stages is None:
        return ()
    try:
        addresses = [Address.parse(part.strip()) for part in config.pipeline_stages.split(",")]
    except ConfigError as error:
        raise ConfigError(f"pipeline_stages: {error}") from None
    for address in addresses:
        if addresses.count(address) > 1:
            raise ConfigError(
                f"pipeline_stages names {address} twice; each stage is a process of its own"
            )
    return tuple(map(str, addresses))


def local_stages(config: EngineConfig) -> int:
    """Return how many stages are processes of this machine; 1 where there is no pipeline."""
    return count_stages(config) - len(stage_addresses(config))


def only_whole(config: EngineConfig, backend: Backend) -> Obstacle | None:
    """Return that ``backend`` runs no stages, where several are asked for."""
    count = count_stages(config)
    if count == 1 or backend.runs_stages:
        return None
    return Obstacle(
        f"pipeline_parallel {count} needs a backend that runs one of several stages, which the "
        f"{backend.name} backend does not do yet",
        "choose --backend cpu, or leave pipeline_parallel out",
    )


def count_stages(config: EngineConfig) -> int:
    """Return how many stages are asked for, 1 where there is no pipeline. Raises ConfigError."""
    count, named = config.pipeline_parallel, len(stage_addresses(config))
    if not 1 <= count <= _MOST_STAGES:
        raise ConfigError(
            f"pipeline_parallel must be 1 to {_MOST_STAGES}, not {count}; leave it out for one "
            "process"
        )
    return named + 1 if count == 1 else count
