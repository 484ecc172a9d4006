"""Adapters of models that came while the server ran."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from penstock.errors import ConfigError, WeightError
from penstock.server.supervisor import Supervisor

_log = logging.getLogger("penstock.adapters")


@dataclass(frozen=True)
class LateAdapter:
    """An adapter that the catalogue does not have."""

    name: str
    model: str
    """The entry that it belongs to."""
    path: str


class LateAdapters:
    """Adapters that were loaded while the server ran. They outlive the engines of their models: one
    that is loaded again gets them again."""

    def __init__(self) -> None:
        self._named: dict[str, LateAdapter] = {}

    def find(self, name: str) -> LateAdapter | None:
        return self._named.get(name)

    def of(self, model: str) -> dict[str, str]:
        """The paths of a model's, by their names."""
        return {each.name: each.path for each in self._named.values() if each.model == model}

    def keep(self, adapter: LateAdapter) -> None:
        self._named[adapter.name] = adapter

    def forget(self, name: str) -> None:
        self._named.pop(name, None)

    async def restore(self, model: str, engine: Supervisor) -> None:
        """Load a model's into a new engine of it. One that cannot be loaded any more is forgotten,
        with a line in the log."""
        for name, path in self.of(model).items():
            try:
                await engine.adapters.load(engine.llm, name, path)
            except (ConfigError, WeightError) as error:
                self.forget(name)
                _log.error("the adapter %r of %s is not served any more: %s", name, model, error)
