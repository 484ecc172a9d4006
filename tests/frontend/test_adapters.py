"""Names of adapters over the engines that load them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from penstock.errors import EngineDeadError, WeightError
from penstock.frontend.adapters import ServedAdapters


@dataclass
class Engine:
    """An engine that knows folders by what is in them."""

    folders: dict[str, str]
    loaded: set[str] = field(default_factory=set)
    dead: bool = False

    async def load_adapter(self, path: str) -> str:
        await asyncio.sleep(0)
        if self.dead:
            raise EngineDeadError("it was killed")
        if path not in self.folders:
            raise WeightError(f"{path} is not a folder")
        self.loaded.add(self.folders[path])
        return self.folders[path]

    async def drop_adapter(self, digest: str) -> None:
        self.loaded.discard(digest)


def served(adapters: ServedAdapters) -> dict[str, str]:
    return {each.name: each.digest for each in adapters}


async def _names() -> None:
    engine = Engine({"/a": "A", "/b": "B", "/same": "A"}, {"A"})
    adapters = ServedAdapters({"a": "/a"}, {"a": "A"})
    await asyncio.gather(
        adapters.load(engine, "b", "/b"),
        adapters.load(engine, "twin", "/same"),
        adapters.unload(engine, "a"),
    )
    assert served(adapters) == {"b": "B", "twin": "A"}
    assert engine.loaded == {"A", "B"}  # what has another name stays
    with pytest.raises(WeightError):
        await adapters.load(engine, "b", "/nowhere")
    assert served(adapters) == {"b": "B", "twin": "A"}
    await adapters.load(engine, "b", "/a")
    assert engine.loaded == {"A"}
    await adapters.unload(engine, "nobody")


async def _restored() -> None:
    """The next engine is given all of them; what is gone is forgotten."""
    folders = {"/a": "A", "/b": "B", "/c": "C"}
    engine = Engine(folders, {"A"})
    adapters = ServedAdapters({"a": "/a"}, {"a": "A"})
    await adapters.load(engine, "b", "/b")
    await adapters.load(engine, "c", "/c")
    with pytest.raises(EngineDeadError):
        await adapters.restore(Engine(folders, dead=True))
    assert served(adapters) == {"a": "A", "b": "B", "c": "C"}
    following = Engine({"/a": "A", "/b": "changed"})
    await adapters.restore(following)
    assert served(adapters) == {"a": "A", "b": "changed"}
    assert following.loaded == {"A", "changed"}


def test_names() -> None:
    asyncio.run(_names())


def test_restored() -> None:
    asyncio.run(_restored())
