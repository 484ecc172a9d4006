"""The adapters that a front end serves beside the model, by their names, over its engines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.errors import ConfigError, WeightError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServedAdapter:
    """An adapter, what it is known by in the engine, and where it lies."""

    name: str
    path: str
    digest: str


class AdapterEngine(Protocol):
    """What loads adapters: :class:`penstock.frontend.async_llm.AsyncLLM`."""

    async def load_adapter(self, path: str) -> str: ...

    async def drop_adapter(self, digest: str) -> None: ...


class ServedAdapters:
    """Names of adapters. Belongs to one event loop; one change is made after the other.

    An engine that takes the place of another is given all of them again (:meth:`restore`).
    """

    def __init__(self, paths: Mapping[str, str], digests: Mapping[str, str]) -> None:
        """Those that the engine has loaded at its start, by their names."""
        self._served = {
            name: ServedAdapter(name, paths[name], digest) for name, digest in digests.items()
        }
        self._changes = asyncio.Lock()

    def __iter__(self) -> Iterator[ServedAdapter]:
        return iter(tuple(self._served.values()))

    def find(self, name: str) -> ServedAdapter | None:
        return self._served.get(name)

    async def load(self, engine: AdapterEngine, name: str, path: str) -> ServedAdapter:
        """Load an adapter, in the place of one of the same name. Raises ConfigError, WeightError or
        EngineDeadError, and has changed nothing then."""
        async with self._changes:
            adapter = ServedAdapter(name, path, await engine.load_adapter(path))
            before, self._served[name] = self._served.get(name), adapter
            if before is not None:
                await self._drop(engine, before.digest)
            return adapter

    async def unload(self, engine: AdapterEngine, name: str) -> None:
        """Forget an adapter, if it is there. What uses it already goes on."""
        async with self._changes:
            before = self._served.pop(name, None)
            if before is not None:
                await self._drop(engine, before.digest)

    async def restore(self, engine: AdapterEngine) -> None:
        """Load them into a new engine, which has none. One that cannot be loaded any more is
        forgotten, with a line in the log."""
        async with self._changes:
            for adapter in tuple(self._served.values()):
                try:
                    digest = await engine.load_adapter(adapter.path)
                    self._served[adapter.name] = ServedAdapter(adapter.name, adapter.path, digest)
                except (ConfigError, WeightError) as error:
                    del self._served[adapter.name]
                    _log.error("the adapter %r is not served any more: %s", adapter.name, error)

    async def _drop(self, engine: AdapterEngine, digest: str) -> None:
        if all(each.digest != digest for each in self._served.values()):
            await engine.drop_adapter(digest)
