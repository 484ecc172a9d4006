"""What models a repository has, and by which names they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from penstock.config import EngineConfig
from penstock.errors import ConfigError

LATEST = ":latest"
"""The tag that Ollama's clients give to a name without one."""


@dataclass(frozen=True)
class ModelEntry:
    """One model, or one version of one."""

    config: EngineConfig
    """What its engine is started with; its ``served_model_name`` is the entry's name."""
    aliases: tuple[str, ...] = ()
    """Other names by which it is asked for."""
    version: str | None = None
    """Its version, where the model has several: its name is then ``MODEL:VERSION``."""
    memory_bytes: int | None = None
    """What it takes in memory; None: what its files, its KV cache and its processes take."""
    at_start: bool = False
    """Whether it is loaded when the server starts, and not when it is asked for first."""
    keep_alive_s: float | None = None
    """Seconds without requests after which it is unloaded; None: only where others need room."""

    @property
    def name(self) -> str:
        name = self.config.served_model_name
        assert name is not None
        return name

    @property
    def model(self) -> str:
        """The name without the version."""
        return self.name if self.version is None else self.name.removesuffix(f":{self.version}")

    @property
    def adapters(self) -> Mapping[str, str]:
        """Its adapters, which requests name as they do models, and where they lie."""
        parts = (word.partition("=") for word in self.config.lora_modules)
        return {name: path for name, _, path in parts}

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def found_by(self) -> tuple[str, ...]:
        """All that :meth:`Catalogue.find` finds it by, unless another model has that name."""
        return (*self.names, *(name + LATEST for name in self.names))


@dataclass(frozen=True)
class Catalogue:
    """The models of a repository, in the order in which they are listed. Raises ConfigError where
    there are none, or two have a name in common."""

    entries: tuple[ModelEntry, ...]
    default: str | None = None
    """The model for requests that name none; None: the only one, or else none."""
    memory_bytes: int | None = None
    """What all that are loaded may take together; None: that is not said here."""
    origin: str = "the catalogue"
    """The file or folder that it was read from."""

    def __post_init__(self) -> None:
        if not self.entries:
            raise ConfigError(f"{self.origin} has no models; write [[models]] for each")
        named: dict[str, str] = {}
        for entry in self.entries:
            for name in (*entry.names, *entry.adapters):
                if name in named:
                    raise ConfigError(
                        f"{self.origin}: the name {name!r} is used twice, by {named[name]!r} and "
                        f"by {entry.name!r}; give one of them another"
                    )
                named[name] = entry.name
        if self.default is not None and self.find(self.default) is None:
            models = ", ".join(self._named)
            raise ConfigError(
                f"{self.origin}: the default model {self.default!r} is none of {models}"
            )

    def __iter__(self) -> Iterator[ModelEntry]:
        return iter(self.entries)

    def find(self, name: str) -> ModelEntry | None:
        """The model of this name or alias, with Ollama's ``:latest`` behind it or not."""
        return self._named.get(name) or self._named.get(name.removesuffix(LATEST))

    def adapted(self, name: str) -> ModelEntry | None:
        """The model that has an adapter of this name."""
        return next((entry for entry in self.entries if name in entry.adapters), None)

    def version(self, model: str, version: str) -> ModelEntry | None:
        """The version of a model; one that has no versions has the version 1."""
        found = self._named.get(f"{model}:{version}") or self._named.get(model)
        if found is None or (found.version or "1") != version:
            return None
        return found

    @property
    def usual(self) -> ModelEntry | None:
        """The model for requests that name none."""
        if self.default is not None:
            return self._named[self.default]
        return self.entries[0] if len(self.entries) == 1 else None

    @cached_property
    def _named(self) -> Mapping[str, ModelEntry]:
        return {name: entry for entry in self.entries for name in entry.names}
