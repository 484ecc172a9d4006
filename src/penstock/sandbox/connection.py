"""An event loop's connection to one worker."""

from __future__ import annotations

import asyncio
import time

import msgspec

from penstock.errors import PenstockError
from penstock.sandbox import wire
from penstock.sandbox.jobs import Answer, Cause, Died, Started, Told
from penstock.sandbox.process import WALL_S, ForkServer, WorkerDied, WorkerProcess


class Connection(asyncio.Protocol):
    """One worker, which does one job at a time. All methods belong to one event loop."""

    def __init__(self) -> None:
        self._frames: wire.FrameBuffer[Told] = wire.FrameBuffer(Told)
        self._transport: asyncio.Transport | None = None
        self._started: asyncio.Future[WorkerProcess]
        self._started = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._asked: asyncio.Future[Answer] | None = None
        self._began_cpu_s = 0.0
        self._late = False
        self._cause: Cause = "crash"

    @classmethod
    async def start(cls, server: ForkServer, tokenizer: str) -> Connection:
        """Raises PenstockError if no process can be started."""
        sock = server.fork(tokenizer)
        connection = cls()
        try:
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.create_unix_connection(lambda: connection, sock=sock)
            await connection._started
        except WorkerDied:
            raise PenstockError("a worker process has died before its first job") from None
        except BaseException:
            sock.close() if connection._transport is None else connection._transport.abort()
            raise
        return connection

    @property
    def process(self) -> WorkerProcess:
        return self._started.result()

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    def ask(self, frame: bytes) -> None:
        """Begin the job of this frame, which ends with :meth:`answer`."""
        self._asked = asyncio.get_running_loop().create_future()
        if self._transport is None or not self.alive:
            self._asked.set_exception(WorkerDied("crash"))
        else:
            self._began_cpu_s = self.process.cpu_s
            self._transport.write(frame)

    async def within(self, cpu_s: float) -> bool:
        """Wait until the job is answered or has taken so much processor time; whether it is
        answered."""
        assert self._asked is not None
        left, ends = cpu_s, time.monotonic() + WALL_S
        while not self._asked.done():
            await asyncio.wait({self._asked}, timeout=max(left, 0.01))
            left = cpu_s - (self.process.cpu_s - self._began_cpu_s)
            if left <= 0 or time.monotonic() > ends:
                break
        return self._asked.done()

    async def answer(self) -> Answer:
        """The job's answer. Raises WorkerDied."""
        assert self._asked is not None
        await asyncio.wait({self._asked}, timeout=WALL_S)
        if not self._asked.done():
            self._late = True
            self.process.kill()
        return await asyncio.shield(self._asked)

    async def aclose(self) -> None:
        """End the worker; safe to repeat."""
        self.process.kill()
        if self._transport is not None:
            self._transport.abort()
        await self._ended.wait()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._frames.feed(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            assert self._transport is not None
            self._transport.abort()
            return
        for message in messages:
            match message:
                case Started(pid):
                    if not self._started.done():
                        self._started.set_result(WorkerProcess(pid))
                case Died(cause):
                    self._cause = "time" if self._late else cause
                case _:
                    if self._asked is not None and not self._asked.done():
                        self._asked.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()
        for waiter in (self._started, self._asked):
            if waiter is not None and not waiter.done():
                waiter.set_exception(WorkerDied(self._cause))
                waiter.exception()  # one that nobody awaits any more is not worth a warning
        if not self._started.cancelled() and self._started.exception() is None:
            self.process.kill()
            self.process.release()
