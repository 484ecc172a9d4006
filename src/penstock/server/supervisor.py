"""Supervising an engine: watch it, restart it when it dies, give up when it keeps dying."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from penstock.engine.ipc.process import START_TIMEOUT_S
from penstock.engine.ipc.spawn import EngineChild
from penstock.engine.ipc.wire import ModelFacts
from penstock.errors import EngineDeadError, PenstockError
from penstock.frontend.async_llm import AsyncLLM
from penstock.frontend.input_processor import InputProcessor
from penstock.frontend.open_sequences import MAX_WAITING
from penstock.frontend.outputs import RequestOutput
from penstock.frontend.pacing import LONGEST_PAUSE_S
from penstock.interface.messages import EngineRequest, EngineStats, Tenant
from penstock.processes.restarts import RestartPolicy
from penstock.server.errors import unavailable
from penstock.tokenizer import Tokenizer

WATCH_S = 0.5
SILENCE_S = 4.0
"""Seconds without a heartbeat (four beats) after which the engine process counts as stopped or
starved of processor time."""
LONG_STEP_S = 8.0
"""Seconds in one step after which the server is not ready, so that routers send it no more
requests."""
DEFAULT_MAX_NUM_SEQS = 256
"""Sequence limit to assume where an engine does not report its own."""

_log = logging.getLogger("penstock.engine")


@dataclass(frozen=True)
class SupervisorOptions(RestartPolicy):
    """When an engine is restarted or killed, and how many sequences may wait for it."""

    hang_s: float = 30.0
    """Seconds of silence after which an engine process is killed."""
    step_timeout_s: float = 600.0
    """Seconds in one step after which an engine process is killed."""
    max_waiting: int = MAX_WAITING
    """Most waiting sequences beyond those that can run at once; further ones are refused, except
    for tenants below their share (``penstock.frontend.open_sequences``)."""
    start_timeout_s: float = START_TIMEOUT_S
    stream_interval_s: float = LONGEST_PAUSE_S
    """Most seconds that a token waits to be sent with others while many sequences are open."""


class Supervisor:
    """An engine that is restarted when it dies; the server uses it. Belongs to one event loop.

    Open requests of an engine that dies fail with EngineDeadError; so do new ones, until the next
    engine has generated its first token.
    """

    def __init__(
        self, llm: AsyncLLM, spawn: Callable[[], EngineChild], options: SupervisorOptions
    ) -> None:
        self._llm = llm
        self._spawn = spawn
        self._options = options
        self._model = llm.model
        self._born = time.monotonic()
        self._back_at = 0.0  # when the next try to restart is due
        self._restarting = False
        self.restarts = 0
        """Number of engines started after the first."""
        self._limit(llm)

    @property
    def model(self) -> ModelFacts:
        return self._model

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
        """Why the engine cannot serve now; None while it can."""
        llm = self._llm
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
        if self._restarting or llm.death is not None or not llm.process.connected:
            wait = max(1, math.ceil(self._back_at - time.monotonic()))
            raise unavailable(
                "the engine has stopped and is being restarted; send the request again later",
                "engine_dead",
                wait,
            )
        llm.open_sequences.check(tenant, 1)

    def outputs(
        self, request: EngineRequest, prompt_text: str | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        """Serve a request with the current engine, as AsyncLLM.outputs does."""
        return self._llm.outputs(request, prompt_text)

    async def stats(self) -> EngineStats:
        """Return the engine's statistics. Raises EngineDeadError."""
        return await self._llm.stats()

    async def run(self) -> None:
        """Watch and restart, for ever; raises EngineDeadError when the engine keeps dying."""
        deaths = 0
        while True:
            error: Exception = await self._watch()
            if time.monotonic() - self._born >= self._options.stable_s:
                deaths = 0
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
                    await self._restart()
                    break
                except (PenstockError, OSError) as failure:
                    error = failure
                    _log.error("the engine could not be restarted: %s", failure)
            self._restarting = False

    async def aclose(self) -> None:
        await self._llm.aclose()

    async def _watch(self) -> PenstockError:
        """Wait until the current engine dies, killing it if it hangs; returns the reason."""
        llm, options = self._llm, self._options
        hung = 0  # looks in a row; one alone may be our own process that was stopped
        while True:
            try:
                await asyncio.wait_for(llm.wait_dead(), WATCH_S)
                assert llm.death is not None
                return llm.death
            except TimeoutError:
                pass
            silent = llm.process.silent_s > options.hang_s
            late = llm.process.step_s > options.step_timeout_s
            hung = hung + 1 if silent or late else 0
            if hung < 3:
                continue
            if silent:
                llm.process.kill(
                    f"the engine hung: nothing came from it for {llm.process.silent_s:.0f} s, and "
                    "it was killed"
                )
            else:
                llm.process.kill(
                    f"the engine hung: one step took more than {llm.process.step_s:.0f} s, and it "
                    "was killed"
                )

    async def _restart(self) -> None:
        await self._llm.aclose()
        began = time.monotonic()
        llm = await AsyncLLM.attach(
            self._spawn(), timeout=self._options.start_timeout_s, inputs=self.inputs
        )
        self._limit(llm)
        self._llm = llm
        self._born = time.monotonic()
        self.restarts += 1
        _log.warning(
            "the engine is back after %.1f s (pid %d)", self._born - began, llm.process.pid
        )

    def _limit(self, llm: AsyncLLM) -> None:
        config = llm.ready.config
        running = DEFAULT_MAX_NUM_SEQS if config is None else config.max_num_seqs
        llm.open_sequences.limit = running + self._options.max_waiting
        llm.pacer.longest_s = self._options.stream_interval_s
