"""The front end's side of the engine process: sends it messages, and notices its death."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import time
from collections.abc import Callable
from typing import Protocol

import penstock.errors as errors
from penstock.engine.exits import describe_compute_exit
from penstock.engine.ipc.spawn import EngineChild
from penstock.engine.ipc.wire import (
    MAX_FRAME_BYTES,
    AdapterReply,
    Beat,
    CacheQuery,
    CacheReply,
    CheckIntegrity,
    Done,
    DropAdapter,
    Fatal,
    FromEngine,
    LoadAdapter,
    Loading,
    Located,
    Logged,
    Ready,
    Refused,
    ResetCache,
    Shutdown,
    StatsQuery,
    StatsReply,
    ToEngine,
    Updates,
    encode_frame,
)
from penstock.errors import EngineDeadError, PenstockError
from penstock.interface.messages import Abort, EngineRequest, EngineStats, SequenceUpdate
from penstock.processes.frames import FrameReader, WireError

START_TIMEOUT_S = 1800.0
"""Seconds after which a start counts as hung; reading 500 GB at 0.5 GB/s takes 1000 s."""
EXIT_GRACE_S = 5.0

_Reply = StatsReply | CacheReply | AdapterReply | Done


class Listener(Protocol):
    """Receives the messages of the engine. Called on the event loop; must not block."""

    def located(self, tokenizer_path: str) -> None: ...

    def loading(self, now: Loading) -> None: ...

    def updated(self, updates: list[SequenceUpdate]) -> None: ...

    def refused(self, refused: Refused) -> None: ...

    def died(self, error: PenstockError) -> None:
        """Called once when the engine is gone, also after a requested close."""
        ...


class EngineProcess(asyncio.Protocol):
    """A connection to an engine process; all methods belong to one event loop."""

    def __init__(self, child: EngineChild, listener: Listener) -> None:
        self._child = child
        self._listener = listener
        self._frames: FrameReader[FromEngine] = FrameReader(FromEngine, MAX_FRAME_BYTES)
        self._transport: asyncio.Transport | None = None
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._queries: dict[int, asyncio.Future[_Reply]] = {}
        self._next_query = 0
        self._fatal: PenstockError | None = None
        self._closing = False
        self._burial: asyncio.Task[None] | None = None
        self._heard_at = time.monotonic()
        self.step_s = 0.0
        """Seconds that the engine's current step had run at the last sign of life."""
        self.death: PenstockError | None = None
        """Why the engine is gone, once it is."""

    @classmethod
    async def connect(cls, child: EngineChild, listener: Listener) -> EngineProcess:
        loop = asyncio.get_running_loop()
        engine = cls(child, listener)
        child.socket.setblocking(False)
        await loop.create_unix_connection(lambda: engine, sock=child.socket)
        return engine

    @property
    def pid(self) -> int:
        return self._child.process.pid

    @property
    def connected(self) -> bool:
        """False from the moment at which the engine's end of the socket was closed."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def silent_s(self) -> float:
        """Seconds since anything came from the engine; it beats every ``wire.BEAT_S``."""
        return time.monotonic() - self._heard_at

    async def ready(self, timeout: float = START_TIMEOUT_S) -> Ready:
        """Wait until the engine has generated its first token.

        Raises the engine's own ConfigError, ModelError or WeightError if it cannot start, and
        EngineDeadError if it died, or took more than ``timeout`` seconds and was killed.
        """
        try:
            return await asyncio.wait_for(asyncio.shield(self._ready), timeout)
        except TimeoutError:
            await self.aclose(grace=0.0)
            raise EngineDeadError(
                f"the engine was not ready after {timeout:g} s and was stopped"
            ) from None

    def add_request(self, request: EngineRequest) -> None:
        """Send a request. Raises EngineDeadError, or WireError if the prompt is too long for one
        frame."""
        self._send(request)

    def abort(self, abort: Abort) -> None:
        """Send an abort to the engine. Raises EngineDeadError."""
        self._send(abort)

    async def stats(self) -> EngineStats:
        """Return the engine's statistics. Raises EngineDeadError."""
        reply = await self._query(StatsQuery)
        assert isinstance(reply, StatsReply)
        return reply.stats

    async def reset_prefix_cache(self) -> None:
        """Forget every cached prefix. Raises EngineDeadError, or PenstockError with the engine's
        reason for refusing."""
        reply = await self._query(ResetCache)
        if isinstance(reply, Done) and reply.error is not None:
            raise PenstockError(reply.error)

    async def check_integrity(self) -> None:
        """Check the engine's bookkeeping. Raises PenstockError if it is inconsistent, or
        EngineDeadError."""
        reply = await self._query(CheckIntegrity)
        if isinstance(reply, Done) and reply.error is not None:
            raise PenstockError(f"the engine's books do not agree: {reply.error}")

    async def cache_changes(self, epoch: str, position: int | None) -> CacheReply:
        """How the prefixes that can be found changed since a position of an epoch. Raises
        EngineDeadError."""
        reply = await self._query(lambda query_id: CacheQuery(query_id, epoch, position))
        assert isinstance(reply, CacheReply)
        return reply

    async def load_adapter(self, path: str) -> str:
        """Load an adapter from a folder; return its digest. Raises EngineDeadError, and the
        engine's ConfigError or WeightError."""
        reply = await self._query(lambda query_id: LoadAdapter(query_id, path))
        assert isinstance(reply, AdapterReply)
        if reply.kind:
            raise getattr(errors, reply.kind, PenstockError)(reply.message)
        return reply.digest

    async def drop_adapter(self, digest: str) -> None:
        """Forget an adapter. Raises EngineDeadError."""
        await self._query(lambda query_id: DropAdapter(query_id, digest))

    def kill(self, reason: str | PenstockError) -> None:
        """End the process at once; ``reason`` is reported as the cause of its death."""
        self._fatal = EngineDeadError(reason) if isinstance(reason, str) else reason
        self._child.process.kill()

    async def aclose(self, grace: float = EXIT_GRACE_S) -> None:
        """Ask the engine to end, and kill it after ``grace`` seconds. Safe to repeat."""
        self._closing = True
        if self.death is None and grace > 0:
            with contextlib.suppress(EngineDeadError):
                self._send(Shutdown())
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._child.process.wait, grace)
        if self._child.process.poll() is None:
            self._child.process.kill()
        if self._transport is not None:
            self._transport.close()
        if self._burial is None:
            self._burial = asyncio.get_running_loop().create_task(self._bury())
        await self._burial

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._heard_at = time.monotonic()
        try:
            messages = self._frames.feed(data)
        except WireError as error:
            self._fatal = EngineDeadError(f"the engine sent {error}")
            self._child.process.kill()
            return
        for message in messages:
            self._dispatch(message)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._burial is None:
            self._burial = asyncio.get_running_loop().create_task(self._bury())

    # Private

    def _dispatch(self, message: FromEngine) -> None:
        match message:
            case Updates():
                self._listener.updated(message.updates)
            case Refused():
                self._listener.refused(message)
            case StatsReply() | CacheReply() | AdapterReply() | Done():
                waiter = self._queries.pop(message.query_id, None)
                if waiter is not None and not waiter.done():
                    waiter.set_result(message)
            case Beat():
                self.step_s = message.step_s
            case Logged():
                logging.getLogger(message.logger).log(message.level, "%s", message.text)
            case Located():
                self._listener.located(message.tokenizer_path)
            case Loading():
                self._listener.loading(message)
            case Ready():
                if not self._ready.done():
                    self._ready.set_result(message)
            case Fatal():
                self._fatal = _error(message)

    def _send(self, message: ToEngine) -> None:
        if self.death is not None or self._transport is None or self._transport.is_closing():
            raise EngineDeadError(str(self.death or "the engine process has closed its socket"))
        self._transport.write(encode_frame(message))

    async def _query(self, make: Callable[[int], ToEngine]) -> _Reply:
        """Send the query that ``make`` makes of its number, and wait for its reply."""
        query_id = self._next_query
        self._next_query += 1
        waiter: asyncio.Future[_Reply] = asyncio.get_running_loop().create_future()
        self._queries[query_id] = waiter
        try:
            self._send(make(query_id))
            return await waiter
        finally:
            self._queries.pop(query_id, None)

    async def _bury(self) -> None:
        """Collect the exit status, then fail every pending call."""
        process = self._child.process
        try:
            await asyncio.to_thread(process.wait, EXIT_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
        if self._fatal is not None:
            self.death = self._fatal
        elif self._closing:
            self.death = EngineDeadError("the engine was closed")
        else:
            self.death = EngineDeadError(
                f"the engine process (pid {process.pid}) "
                f"{describe_compute_exit(process.returncode)}"
            )
        waiters: list[asyncio.Future[Ready] | asyncio.Future[_Reply]]
        waiters = [self._ready, *self._queries.values()]
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(self.death)
                waiter.exception()  # a waiter that nobody awaits is not worth a warning
        self._listener.died(self.death)


def _error(fatal: Fatal) -> PenstockError:
    """The engine's error, of the class it had there if that is one of penstock.errors."""
    kind = getattr(errors, fatal.kind, EngineDeadError)
    if isinstance(kind, type) and issubclass(kind, PenstockError):
        return kind(fatal.message)
    return EngineDeadError(fatal.message)
