"""When an engine that says nothing is taken for one that hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast
from unittest.mock import Mock

import pytest

from penstock.config import EngineConfig
from penstock.errors import EngineDeadError
from penstock.frontend.async_llm import AsyncLLM
from penstock.server import engine_watch
from penstock.server.setups import EngineSetup
from penstock.server.supervisor import Supervisor, SupervisorOptions


@dataclass
class Looks:
    """An engine's process as each look finds it: seconds of silence, seconds of the step."""

    silent: Iterator[float]
    step_s: float = 0.0
    silent_s: float = 0.0
    killed: str | None = None

    def kill(self, reason: str) -> None:
        self.killed = reason


@dataclass
class Engine:
    """The part of an AsyncLLM that a supervisor that watches needs."""

    process: Looks
    model: Any = field(default_factory=lambda: Mock(adapters={}))
    ready: Any = field(default_factory=lambda: Mock(config=None))
    open_sequences: Any = field(default_factory=Mock)
    pacer: Any = field(default_factory=Mock)
    death: EngineDeadError | None = None

    async def wait_dead(self) -> EngineDeadError:
        if self.process.killed is not None:
            self.death = EngineDeadError(self.process.killed)
            return self.death
        silent = next(self.process.silent, None)
        if silent is None:  # no more looks
            self.death = EngineDeadError("the test is over")
            return self.death
        self.process.silent_s = silent
        await asyncio.sleep(3600)
        raise AssertionError


def watched(*silent: float, step_s: float = 0.0) -> str:
    """Why the engine ended, which was found silent for these times in turn."""
    engine = Engine(Looks(iter(silent), step_s))
    options = SupervisorOptions(hang_s=5.0, step_timeout_s=60.0, max_restarts=0)
    made = Supervisor(cast(AsyncLLM, engine), EngineSetup(EngineConfig()), options)
    with pytest.raises(EngineDeadError) as error:
        asyncio.run(made.run())
    return str(error.value)


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_watch, "WATCH_S", 0.001)


def test_an_engine_that_stays_silent_hangs() -> None:
    assert "nothing came from it for 8 s" in watched(6, 7, 8, 9, 10)


def test_a_step_without_end_hangs() -> None:
    assert "one step took more than 61 s" in watched(0, 0, 0, 0, step_s=61)


def test_a_server_that_was_stopped_does_not_blame_its_engine() -> None:
    """Its own clock went on: the first look finds a silence, which the engine's messages end."""
    assert "the test is over" in watched(0, 600, 0, 600, 601, 0, 4)
