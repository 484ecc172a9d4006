"""Supervising an engine: watch it, restart it when it dies, give up when it keeps dying, and put
one of another setup in its place where that is asked for."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from penstock.engine.ipc.process import START_TIMEOUT_S
from penstock.engine.ipc.wire import ModelFacts
from penstock.errors import EngineDeadError, PenstockError
from penstock.frontend.adapters import ServedAdapters
from penstock.frontend.async_llm import AsyncLLM
from penstock.frontend.input_processor import InputProcessor
from penstock.frontend.open_sequences import Place
from penstock.frontend.outputs import RequestOutput
from penstock.frontend.pacing import LONGEST_PAUSE_S
from penstock.interface.messages import EngineRequest, EngineStats, Tenant
from penstock.processes.restarts import RestartPolicy
from penstock.server.engine_watch import watch
from penstock.server.errors import unavailable
from penstock.server.setups import EngineSetup
from penstock.server.turnstile import Turnstile
from penstock.tokenizer import Tokenizer

SILENCE_S = 4.0
"""Seconds without a heartbeat (four beats) after which the engine process counts as stopped or
starved of processor time."""
LONG_STEP_S = 8.0
"""Seconds in one step, or of holding requests, after which the server is not ready, so that routers
send it no more."""
DEFAULT_MAX_NUM_SEQS = 256
"""Sequence limit to assume where an engine does not report its own."""

_log = logging.getLogger("penstock.engine")


@dataclass(frozen=True)
class SupervisorOptions(RestartPolicy):
    """When an engine is restarted or killed."""

    hang_s: float = 30.0
    """Seconds of silence after which an engine process is killed."""
    step_timeout_s: float = 600.0
    """Seconds in one step after which an engine process is killed."""
    start_timeout_s: float = START_TIMEOUT_S
    stream_interval_s: float = LONGEST_PAUSE_S
    """Most seconds that a token waits to be sent with others while many sequences are open."""


class NotExchangedError(PenstockError):
    """The engine that was asked for could not start; one of the former setup serves again."""


@dataclass(frozen=True)
class _Exchange:
    setup: EngineSetup
    done: asyncio.Future[None]


class Supervisor:
    """An engine that is restarted when it dies; the server uses it. Belongs to one event loop.

    Open requests of an engine that dies fail with EngineDeadError; so do new ones, until the next
    engine has generated its first token. It is started with the setup in force.
    """

    def __init__(self, llm: AsyncLLM, setup: EngineSetup, options: SupervisorOptions) -> None:
        self._llm = llm
        self._setup = setup
        config = llm.ready.config
        paths = {} if config is None else config.lora_modules
        self.adapters = ServedAdapters(paths, llm.model.adapters)
        """The adapters that are served beside the model."""
        self._options = options
        self.turnstile = Turnstile(llm.open_sequences)
        """Requests that ask for tokens go through it before they are prepared for the engine."""
        self._exchange: _Exchange | None = None
        self._asked = asyncio.Event()
        self._exchanging = False
        self._born = time.monotonic()
        self._back_at = 0.0  # when the next try to restart is due
        self._restarting = False
        self.restarts = 0
        """Number of engines started after the first."""
        self._limit(llm, setup)

    @property
    def model(self) -> ModelFacts:
        """That of the current engine; another setup may change how long requests may be."""
        return self._llm.model

    @property
    def setup(self) -> EngineSetup:
        """The one in force."""
        return self._setup

    @property
    def tokenizer(self) -> Tokenizer:
        return self.inputs.tokenizer

    @property
    def inputs(self) -> InputProcessor:
        return self._llm.inputs

    @property
    def llm(self) -> AsyncLLM:
        """The current engine, alive or not."""
        return self._llm

    @property
    def max_sequences(self) -> int:
        """Most sequences that may be open, running or waiting."""
        assert self._llm.open_sequences.limit is not None
        return self._llm.open_sequences.limit

    @property
    def trouble(self) -> str | None:
        """Why the engine cannot serve now; None while it can, or will before long."""
        llm, held_s = self._llm, self.turnstile.closed_s
        if held_s > LONG_STEP_S:
            return f"requests have been held for {held_s:.0f} s, for an engine of another profile"
        if self._exchanging:
            return None
        if self._restarting or llm.death is not None or not llm.process.connected:
            return "the engine has stopped and is being restarted"
        if llm.process.silent_s > SILENCE_S:
            return f"nothing has come from the engine for {llm.process.silent_s:.0f} s"
        if llm.process.step_s > LONG_STEP_S:
            return f"the engine has been in one step for {llm.process.step_s:.0f} s"
        return None

    def check(self, tenant: Tenant) -> None:
        """Raise ApiError or OverloadedError if a request of this tenant would be refused now."""
        llm = self._llm
        dead = self._restarting or llm.death is not None or not llm.process.connected
        if dead and not self._exchanging:
            wait = max(1, math.ceil(self._back_at - time.monotonic()))
            raise unavailable(
                "the engine has stopped and is being restarted; send the request again later",
                "engine_dead",
                wait,
            )
        llm.open_sequences.check(tenant, 1)

    def outputs(
        self,
        request: EngineRequest,
        prompt_text: str | None = None,
        place: Place | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Serve a request with the current engine, as AsyncLLM.outputs does."""
        return self._llm.outputs(request, prompt_text, place)

    async def stats(self) -> EngineStats:
        """Return the engine's statistics. Raises EngineDeadError."""
        return await self._llm.stats()

    def adopt(self, setup: EngineSetup) -> None:
        """Put a setup in force whose engine is the one that runs."""
        self._setup = setup
        self._limit(self._llm, setup)

    async def exchange(self, setup: EngineSetup) -> None:
        """End the engine, which serves no request, and start one of another setup in its place.

        The setup is in force when this returns. Raises NotExchangedError if such an engine cannot
        start, once one of the former setup serves again, and EngineDeadError if none does.
        """
        assert self._exchange is None, "there is another one"
        asked = _Exchange(setup, asyncio.get_running_loop().create_future())
        self._exchange = asked
        self._asked.set()
        try:
            await asked.done
        finally:
            self._exchange = None
            self._asked.clear()

    async def run(self) -> None:
        """Watch, restart and exchange, for ever; raises EngineDeadError when the engine keeps
        dying."""
        deaths = 0
        try:
            while True:
                error = await watch(
                    self._llm, self._options.hang_s, self._options.step_timeout_s, self._asked
                )
                if error is None:
                    await self._exchanged()
                    continue
                if time.monotonic() - self._born >= self._options.stable_s:
                    deaths = 0
                deaths = await self._revive(error, deaths)
        finally:
            if self._exchange is not None and not self._exchange.done.done():
                self._exchange.done.set_exception(EngineDeadError("there is no engine any more"))

    async def aclose(self) -> None:
        await self._llm.aclose()

    async def _exchanged(self) -> None:
        """Carry out the exchange that was asked for; an engine runs when this returns."""
        asked = self._exchange
        self._asked.clear()
        assert asked is not None
        self._exchanging = True
        try:
            failure: Exception | None = None
            try:
                await self._start(asked.setup)
            except (PenstockError, OSError) as error:
                failure = error
                _log.error("the engine did not start with another profile: %s", error)
                await self._return()
            if asked.done.done():  # whoever asked for it has left
                return
            if failure is None:
                asked.done.set_result(None)
            else:
                asked.done.set_exception(NotExchangedError(str(failure)))
        finally:
            self._exchanging = False

    async def _return(self) -> None:
        """Start an engine of the setup in force, which has run before."""
        try:
            await self._start(self._setup)
        except (PenstockError, OSError) as error:
            _log.error("the engine could not be started again: %s", error)
            await self._revive(error, 0)

    async def _revive(self, error: Exception, deaths: int) -> int:
        """Start the engine that died again, until it runs; returns the number of deaths in a row,
        of which there were ``deaths`` before."""
        self._restarting = True
        while True:
            deaths += 1
            wait = self._options.pause(deaths)
            if wait is None:
                raise EngineDeadError(
                    f"the engine died {deaths} times in a row, and the server gives up; the "
                    f"last time: {error}"
                )
            self._back_at = time.monotonic() + wait
            _log.warning("the engine is restarted in %g s (%d in a row)", wait, deaths)
            await asyncio.sleep(wait)
            try:
                took = await self._start(self._setup)
                break
            except (PenstockError, OSError) as failure:
                error = failure
                _log.error("the engine could not be restarted: %s", failure)
        self.restarts += 1
        _log.warning("the engine is back after %.1f s (pid %d)", took, self._llm.process.pid)
        self._restarting = False
        return deaths

    async def _start(self, setup: EngineSetup) -> float:
        """Start an engine in the place of the current one, which is ended first: both would need
        the memory. Returns how many seconds that took; the setup is in force then."""
        await self._llm.aclose()
        began = time.monotonic()
        llm = await AsyncLLM.attach(
            setup.without_adapters.spawn(),
            timeout=self._options.start_timeout_s,
            inputs=self.inputs,
            sequences=self._llm.open_sequences,
        )
        try:
            await self.adapters.restore(llm)
        except BaseException:
            await llm.aclose()
            raise
        self._limit(llm, setup)
        self._llm = llm
        self._setup = setup
        self._born = time.monotonic()
        return self._born - began

    def _limit(self, llm: AsyncLLM, setup: EngineSetup) -> None:
        config = llm.ready.config
        running = DEFAULT_MAX_NUM_SEQS if config is None else config.max_num_seqs
        llm.open_sequences.limit = running + setup.max_waiting
        llm.pacer.longest_s = self._options.stream_interval_s
