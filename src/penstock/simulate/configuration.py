"""A configuration as it was asked for: an engine's options, and how many replicas there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.frontend.open_sequences import MAX_WAITING
from penstock.sizing.accelerator import Network


@dataclass(frozen=True)
class Configuration:
    """A configuration as it was asked for."""

    name: str
    engine: EngineConfig
    replicas: int = 1
    routing: str = "round-robin"
    max_waiting: int = MAX_WAITING
    prefill: int = 0
    """Engines that compute prompts apart, of each replica, beside the one that answers."""
    network: Network | None = None
    """What joins the machines of a replica; None: it has one."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Its options as they were written."""


def refuse(config: EngineConfig, names: Sequence[str], why: str) -> None:
    """Raise ConfigError where one of these options has been given a value."""
    usual = EngineConfig()
    for name in names:
        if getattr(config, name) != getattr(usual, name):
            raise ConfigError(f"{name} {why}")
