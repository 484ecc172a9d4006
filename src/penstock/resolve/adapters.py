"""Decides whether adapters are served, how many at once, and of which rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.backends.backend import Backend, Obstacle
from penstock.config import EngineConfig
from penstock.errors import ConfigError
from penstock.interface.adapters import MAX_RANK, AdapterSlots
from penstock.resolve.inputs import Reasons, reason

DEFAULT_RANK: Final = 16
"""What most adapters have, and vLLM's default."""
_MOST_SLOTS: Final = 1024
"""More are taken for a mistake."""


@dataclass(frozen=True)
class AdapterDecision:
    """The room for adapters; none where none are served."""

    slots: AdapterSlots | None
    modules: Mapping[str, str]
    """The folders of those that are loaded at the start, by the names that requests have for
    them."""
    reasons: Reasons

    @property
    def count(self) -> int:
        return 0 if self.slots is None else self.slots.count

    @property
    def rank(self) -> int:
        return 0 if self.slots is None else self.slots.rank


def decide_adapters(config: EngineConfig) -> AdapterDecision:
    """Return the room asked for, or else that for the adapters that are named. Raises ConfigError
    where adapters cannot be served with the other options."""
    modules = read_modules(config.lora_modules)
    own_name = config.served_model_name or config.model
    if own_name in modules:
        raise ConfigError(
            f"lora_modules names an adapter {own_name!r}, as the model itself is called; nobody "
            "could ask for it: give it another name"
        )
    count, rank = config.max_loras, config.max_lora_rank
    if count is None:
        count = len(modules)
        if rank is not None and not modules:
            raise ConfigError(
                "max_lora_rank has no effect without adapters; set max_loras, or name adapters by "
                "lora_modules"
            )
    elif not 1 <= count <= _MOST_SLOTS:
        raise ConfigError(
            f"max_loras must be 1 to {_MOST_SLOTS}, not {count}; leave it out for none"
        )
    if count == 0:
        return AdapterDecision(None, {}, {})
    if rank is not None and not 1 <= rank <= MAX_RANK:
        raise ConfigError(f"max_lora_rank must be 1 to {MAX_RANK}, not {rank}")
    for option, world in (
        ("tensor_parallel", config.tensor_parallel),
        ("pipeline_parallel", config.pipeline_parallel),
    ):
        if world > 1:
            raise ConfigError(
                f"adapters (max_loras, lora_modules) are not served by several processes yet; "
                f"leave {option} out"
            )
    reasons = {
        "max_loras": reason(config.max_loras, "one for each of lora_modules"),
        "max_lora_rank": reason(rank, "the default"),
    }
    return AdapterDecision(AdapterSlots(count, rank or DEFAULT_RANK), modules, reasons)


def only_plain(config: EngineConfig, backend: Backend) -> Obstacle | None:
    """Return what keeps ``backend`` from serving the adapters that are asked for, if there are
    any."""
    if backend.runs_adapters or not (config.max_loras or config.lora_modules):
        return None
    return Obstacle(
        f"adapters (max_loras, lora_modules) need a backend that adds them to products, which the "
        f"{backend.name} backend does not do yet",
        "choose --backend cpu, or merge the adapter into the model",
    )


def read_modules(words: tuple[str, ...]) -> dict[str, str]:
    """The folders of ``NAME=PATH``, by name. Raises ConfigError."""
    modules: dict[str, str] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or not name or not path:
            raise ConfigError(f"lora_modules must be NAME=PATH each, not {word!r:.80}")
        if name in modules:
            raise ConfigError(f"lora_modules names {name!r} twice")
        modules[name] = path
    return modules
