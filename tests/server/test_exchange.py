"""A supervisor that puts an engine of another setup in the place of the one that runs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast
from unittest.mock import Mock

import pytest
from support.profiles import profile_of_another

from penstock.config import EngineConfig
from penstock.engine.ipc.spawn import EngineChild
from penstock.errors import ConfigError, EngineDeadError, OverloadedError
from penstock.frontend.async_llm import AsyncLLM
from penstock.frontend.open_sequences import OpenSequences
from penstock.interface.messages import Tenant
from penstock.profile import ProfileOptions
from penstock.server import supervisor as module
from penstock.server.errors import ApiError
from penstock.server.setups import EngineSetup, Setups
from penstock.server.supervisor import NotExchangedError, Supervisor, SupervisorOptions
from penstock.server.switch import Switch

SOMEBODY = Tenant("a")


@dataclass
class Engine:
    """The part of an AsyncLLM that a supervisor needs; it lives until it is closed, or dies."""

    name: str
    log: list[str]
    open_sequences: OpenSequences = field(default_factory=lambda: OpenSequences(None))
    model: Any = field(default_factory=lambda: Mock(adapters={}))
    inputs: Any = field(default_factory=Mock)
    ready: Any = field(default_factory=lambda: Mock(config=Mock(max_num_seqs=4, notes=[])))
    pacer: Any = field(default_factory=Mock)
    process: Any = field(
        default_factory=lambda: Mock(silent_s=0.0, step_s=0.0, connected=True, pid=1)
    )
    death: EngineDeadError | None = None
    _dead: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait_dead(self) -> None:
        await self._dead.wait()

    def die(self, why: str) -> None:
        self.death = EngineDeadError(why)
        self.process.connected = False
        self._dead.set()

    async def aclose(self) -> None:
        if self.death is None:
            self.log.append(f"{self.name} ended")
            self.die("it was closed")


@dataclass(frozen=True)
class Named(EngineSetup):
    name: str = ""

    def spawn(self) -> EngineChild:
        return cast(EngineChild, self.name)


def setup(name: str, max_waiting: int = 8) -> Named:
    return Named(EngineConfig(), max_waiting, name=name)


@dataclass
class Starts:
    """What becomes of engines that are started, in turn: errors; where there are no more, they
    run. ``gate`` holds them up while it is not set."""

    log: list[str] = field(default_factory=list)
    outcomes: deque[Exception | None] = field(default_factory=deque)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def attach(self, child: Any, **settings: Any) -> Any:
        self.log.append(f"{child} started")
        await self.gate.wait()
        outcome = self.outcomes.popleft() if self.outcomes else None
        if outcome is not None:
            self.log.append(f"{child} failed")
            raise outcome
        return Engine(child, self.log, settings["sequences"])


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    made = Starts()
    made.gate.set()
    monkeypatch.setattr(AsyncLLM, "attach", made.attach)
    return made


def supervised(
    starts: Starts,
    work: Callable[[Supervisor], Awaitable[None]],
    options: SupervisorOptions | None = None,
) -> None:
    """Do ``work`` beside a supervisor that runs an engine called "old"."""

    async def main() -> None:
        engine = Engine("old", starts.log)
        quick = SupervisorOptions(backoff_s=0.001, max_restarts=2)
        made = Supervisor(cast(AsyncLLM, engine), setup("old"), options or quick)
        running = asyncio.ensure_future(made.run())
        await work(made)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def current(made: Supervisor) -> Engine:
    return cast(Engine, made.llm)


def test_the_old_engine_has_ended_before_the_next_begins(starts: Starts) -> None:
    async def work(made: Supervisor) -> None:
        assert made.max_sequences == 12
        await made.exchange(setup("new", 2))
        assert starts.log == ["old ended", "new started"]
        assert current(made).name == "new"
        assert made.setup == setup("new", 2)
        assert made.max_sequences == 6
        assert made.restarts == 0
        await made.exchange(setup("newer"))
        assert current(made).name == "newer"

    supervised(starts, work)


def test_the_next_engines_facts_are_the_servers(starts: Starts) -> None:
    async def work(made: Supervisor) -> None:
        before = made.model
        await made.exchange(setup("new"))
        assert made.model is current(made).model is not before

    supervised(starts, work)


def test_one_that_does_not_start_leaves_the_former_setup(starts: Starts) -> None:
    starts.outcomes.append(ConfigError("too little memory; lower kv_cache_bytes"))

    async def work(made: Supervisor) -> None:
        with pytest.raises(NotExchangedError, match="too little memory; lower kv_cache_bytes"):
            await made.exchange(setup("new", 2))
        assert starts.log == ["old ended", "new started", "new failed", "old started"]
        assert made.setup == setup("old")
        assert made.max_sequences == 12
        assert made.trouble is None
        assert made.restarts == 0
        made.check(SOMEBODY)

    supervised(starts, work)


def test_a_former_setup_that_does_not_start_at_once_is_tried_again(starts: Starts) -> None:
    starts.outcomes += [ConfigError("wrong"), EngineDeadError("no memory yet"), OSError("busy")]

    async def work(made: Supervisor) -> None:
        with pytest.raises(NotExchangedError, match="wrong"):
            await made.exchange(setup("new"))
        assert [each for each in starts.log if "started" in each] == ["new started"] + [
            "old started"
        ] * 3
        assert made.trouble is None

    supervised(starts, work)


def test_it_gives_up_where_neither_starts(starts: Starts) -> None:
    starts.outcomes += [EngineDeadError("out of memory")] * 4

    async def work(made: Supervisor) -> None:
        with pytest.raises(EngineDeadError, match="no engine any more"):
            await made.exchange(setup("new"))

    supervised(starts, work)


def test_meanwhile_requests_wait_and_are_not_refused(starts: Starts) -> None:
    async def work(made: Supervisor) -> None:
        starts.gate.clear()
        exchanging = asyncio.ensure_future(made.exchange(setup("new")))
        while "new started" not in starts.log:
            await asyncio.sleep(0)
        assert current(made).death is not None
        made.check(SOMEBODY)
        assert made.trouble is None
        current(made).open_sequences.add(SOMEBODY, 12)  # the limit is as ever
        with pytest.raises(OverloadedError):
            made.check(SOMEBODY)
        current(made).open_sequences.remove(SOMEBODY, 12)
        starts.gate.set()
        await exchanging
        made.check(SOMEBODY)

    supervised(starts, work)


def test_a_server_that_holds_requests_for_long_is_not_ready(
    starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONG_STEP_S", 0.0)

    async def work(made: Supervisor) -> None:
        assert made.trouble is None
        made.turnstile.close()
        await asyncio.sleep(0.001)
        assert made.trouble is not None
        assert "requests have been held for 0 s" in made.trouble
        made.turnstile.open()
        assert made.trouble is None

    supervised(starts, work)


def test_an_engine_that_dies_later_comes_back_with_the_setup_in_force(starts: Starts) -> None:
    async def work(made: Supervisor) -> None:
        await made.exchange(setup("new", 2))
        current(made).die("it was killed")
        while not made.restarts:
            await asyncio.sleep(0.001)
        assert starts.log == ["old ended", "new started", "new started"]
        assert made.max_sequences == 6

    supervised(starts, work)


def test_an_engine_that_is_dead_is_restarted_before_it_is_exchanged(starts: Starts) -> None:
    async def work(made: Supervisor) -> None:
        current(made).die("it was killed")
        with pytest.raises(ApiError) as refused:
            made.check(SOMEBODY)
        assert refused.value.body.error.code == "engine_dead"
        await made.exchange(setup("new"))
        assert starts.log == ["old started", "old ended", "new started"]
        assert made.restarts == 1

    supervised(starts, work)


def test_whoever_asked_may_leave(starts: Starts) -> None:
    async def work(made: Supervisor) -> None:
        starts.gate.clear()
        exchanging = asyncio.ensure_future(made.exchange(setup("new")))
        while "new started" not in starts.log:
            await asyncio.sleep(0)
        exchanging.cancel()
        await asyncio.gather(exchanging, return_exceptions=True)
        starts.gate.set()
        while current(made).name != "new":
            await asyncio.sleep(0)
        await made.exchange(setup("newer"))
        assert current(made).name == "newer"

    supervised(starts, work)


def switching(made: Supervisor) -> Switch:
    """The exchange is for an engine of another setup, whatever the profile."""
    current(made).model.parameters = 0
    next_one = Named(EngineConfig(max_num_seqs=5), 8, name="new")
    return Switch(made, Setups(made.setup, lambda profile: next_one, lambda profile: None))


def test_without_time_to_wait_nobody_comes_in_once_a_switch_is_asked_for(starts: Starts) -> None:
    """Whoever has seen that it is pending is held, if it asks in the same moment."""

    async def work(made: Supervisor) -> None:
        switch, inside = switching(made), made.turnstile.enter()
        done = switch.begin(profile_of_another(ProfileOptions()), 0)
        pending = switch.status.pending
        assert pending is not None
        assert pending.phase == "holding"
        assert not made.turnstile.is_open
        held = asyncio.ensure_future(made.turnstile.hold(SOMEBODY, 1))
        await asyncio.sleep(0)
        inside.close()
        assert (await done).held == 1
        assert current(made).name == "new"
        (await held).close()
        assert switch.status.pending is None

    supervised(starts, work)


def test_a_switch_that_is_given_up_before_it_runs_lets_everybody_in(starts: Starts) -> None:
    async def work(made: Supervisor) -> None:
        switch, inside = switching(made), made.turnstile.enter()
        done = switch.begin(profile_of_another(ProfileOptions()), 0)
        switch.cancel()
        await asyncio.gather(done, return_exceptions=True)
        assert made.turnstile.is_open
        assert switch.status.pending is None
        inside.close()

    supervised(starts, work)


def test_a_setup_of_the_same_engine_is_adopted(starts: Starts) -> None:
    async def work(made: Supervisor) -> None:
        made.adopt(setup("old", 1))
        assert made.max_sequences == 5
        assert starts.log == []

    supervised(starts, work)
