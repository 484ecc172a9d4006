"""A model that is loaded: its engine, and all that a server of one model makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from starlette.routing import Route, Router

from penstock.config import EngineConfig
from penstock.engine.ipc.spawn import DEFAULT_CORE
from penstock.errors import ConfigError
from penstock.frontend.async_llm import AsyncLLM
from penstock.frontend.input_processor import InputProcessor
from penstock.frontend.open_sequences import MAX_WAITING
from penstock.interface.loading import ProgressCallback
from penstock.profile import Profile
from penstock.repository.catalogue import ModelEntry
from penstock.server.admin import Admin
from penstock.server.app import documented
from penstock.server.cache_events import CacheEvents
from penstock.server.handlers import Handlers
from penstock.server.http_app import answered
from penstock.server.kept import Kept
from penstock.server.metrics import Counts
from penstock.server.models.footprint import PROCESS_BYTES, expected_bytes, process_bytes
from penstock.server.models.late_adapters import LateAdapters
from penstock.server.models.long_work import in_own_thread
from penstock.server.open_requests import OpenRequests
from penstock.server.options import ServerOptions
from penstock.server.routes import endpoints as route_table
from penstock.server.setups import EngineSetup, Setups
from penstock.server.supervisor import Supervisor, SupervisorOptions
from penstock.server.switch import Switch

KV_SHARE = 8
"""A model whose KV cache has no size gets the budget by this: eight models beside each other, or
half of the memory for weights."""


class ServedModel:
    """A model that takes requests, as an ASGI application without what all models have in common:
    ids, logs and keys of requests."""

    def __init__(
        self,
        entry: ModelEntry,
        supervisor: Supervisor,
        switch: Switch,
        inputs: InputProcessor,
        handlers: Handlers,
    ) -> None:
        self.supervisor = supervisor
        self.handlers = handlers
        self._stated_bytes = entry.memory_bytes
        self._switch = switch
        self._inputs = inputs
        self._router = Router()

    @classmethod
    async def start(
        cls,
        entry: ModelEntry,
        setup: EngineSetup,
        options: ModelOptions,
        progress: ProgressCallback,
    ) -> ServedModel:
        """Start its engine; returns once that has generated its first token. Raises as
        AsyncLLM.attach does."""
        inputs = InputProcessor()
        try:
            inputs.expect(setup.config.tokenizer or setup.config.model)
            llm = await AsyncLLM.attach(
                setup.spawn(),
                timeout=options.supervisor.start_timeout_s,
                inputs=inputs,
                progress=progress,
            )
            try:
                return cls._over(llm, entry, setup, options)
            except BaseException:
                await llm.aclose()
                raise
        except BaseException:
            await inputs.aclose()
            raise

    @classmethod
    def _over(
        cls, llm: AsyncLLM, entry: ModelEntry, setup: EngineSetup, options: ModelOptions
    ) -> ServedModel:
        """The model of an engine that runs."""
        supervisor = Supervisor(llm, setup, options.supervisor)
        switch = Switch(supervisor, Setups(setup, _no_profiles, lambda profile: None))
        handlers = Handlers(
            supervisor,
            options.requests,
            options.server,
            options.dropped_log_lines,
            options.counts_of(entry.name),
            entry.found_by,
            options.kept,
        )
        made = cls(entry, supervisor, switch, llm.inputs, handlers)
        admin = Admin(supervisor, options.requests, options.server, switch)
        cache = (CacheEvents(supervisor, options.requests), handlers.prompt_keys)
        own = (
            *route_table(handlers),
            *admin.endpoints(),
            *(each.endpoint() for each in cache),
            *handlers.prefixes.endpoints(),
        )
        handlers.document = documented(supervisor, own, options.server.keys)
        made._router = Router(
            [Route(e.path, answered(e.handler, e.error_body), methods=[e.method]) for e in own]
        )
        return made

    @property
    def app(self) -> Router:
        return self._router

    @property
    def pid(self) -> int:
        return self.supervisor.llm.process.pid

    @property
    def takes_bytes(self) -> int:
        """What it may take: what its entry states, or else weights as they are packed, its whole
        KV cache, also what of it is kept in the host's memory, and its processes; what these take
        now if that is more."""
        config = self.supervisor.llm.ready.config
        planned = self._stated_bytes or 0
        if not planned and config is not None:
            kv = config.kv_cache_bytes + config.kv_host_bytes
            planned = config.weight_bytes + kv + PROCESS_BYTES
        return max(planned, process_bytes(self.pid))

    async def lost(self) -> None:
        """Restart its engine when that dies; raises EngineDeadError once it keeps dying."""
        await self.supervisor.run()

    async def aclose(self) -> None:
        await self.handlers.settle()
        await self._switch.aclose()
        await self.supervisor.aclose()
        await self._inputs.aclose()


@dataclass(frozen=True)
class ModelOptions:
    """What all models of a server have in common."""

    requests: OpenRequests
    server: ServerOptions = ServerOptions()  # noqa: RUF009
    supervisor: SupervisorOptions = SupervisorOptions()  # noqa: RUF009
    dropped_log_lines: Callable[[], int] = lambda: 0
    max_waiting: int = MAX_WAITING
    core: str = DEFAULT_CORE
    kept: Kept = field(default_factory=Kept)
    adapters: LateAdapters = field(default_factory=LateAdapters)
    counts: dict[str, Counts] = field(default_factory=dict)
    """What was counted of each model since the server started, whichever engine it had."""

    def counts_of(self, name: str) -> Counts:
        return self.counts.setdefault(name, Counts())


class ModelLoader:
    """Loads the models of a catalogue in processes of their own; all together may take ``budget``
    bytes."""

    def __init__(self, options: ModelOptions, budget: Callable[[], int]) -> None:
        self._options = options
        self._budget = budget
        self._sizing = asyncio.Lock()

    async def size(self, entry: ModelEntry) -> int:
        """See :class:`penstock.repository.loaded.Loader`. Downloads what is not there yet."""
        if entry.memory_bytes is not None:
            return entry.memory_bytes
        config = self.config(entry)
        if Path(config.model).expanduser().exists():
            return await asyncio.to_thread(expected_bytes, config)
        async with self._sizing:  # one download at a time has the whole line
            return await in_own_thread(lambda: expected_bytes(config))

    async def load(self, entry: ModelEntry, progress: ProgressCallback) -> ServedModel:
        setup = EngineSetup(self.config(entry), self._options.max_waiting, core=self._options.core)
        model = await ServedModel.start(entry, setup, self._options, progress)
        try:
            await self._options.adapters.restore(entry.name, model.supervisor)
        except BaseException:
            await model.aclose()
            raise
        return model

    def config(self, entry: ModelEntry) -> EngineConfig:
        """What its engine is started with: its KV cache has a size, since what is free now may be
        promised to others."""
        if entry.config.kv_cache_bytes is not None:
            return entry.config
        share = self._budget() // KV_SHARE
        return msgspec.structs.replace(entry.config, kv_cache_bytes=share)


def _no_profiles(profile: Profile) -> EngineSetup:
    raise ConfigError(
        "a server of several models takes no profiles; write the options into its catalogue"
    )
