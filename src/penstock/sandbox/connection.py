"""An event loop's connection to one worker."""

from __future__ import annotations

import asyncio
import time

from penstock.errors import UnavailableError
from penstock.processes.frames import FrameReader, WireError
from penstock.sandbox.jobs import Answer, Died, End, FromWorker, Started
from penstock.sandbox.process import START_S, WALL_S, ForkServer, WorkerDied, WorkerProcess


class Connection(asyncio.Protocol):
    """A worker, which does one job at a time. All methods belong to one event loop."""

    def __init__(self) -> None:
        self._frames: FrameReader[FromWorker] = FrameReader(FromWorker)
        self._transport: asyncio.Transport | None = None
        self._started: asyncio.Future[WorkerProcess]
        self._started = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._asked: asyncio.Future[Answer] | None = None
        self._began_cpu_s = 0.0
        self._end: End = "lost"
        self._closing = False

    async def start(self, server: ForkServer, tokenizer: str) -> None:
        """Fork and start the worker. Call it once, and :meth:`aclose` afterwards in any case.

        Raises UnavailableError if no process can be started. A fork server that does not start one
        within ``START_S`` is ended.
        """
        sock = None
        try:
            sock = server.fork(tokenizer)
            async with asyncio.timeout(START_S):
                await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=sock)
                await self._started
        except WorkerDied:
            raise UnavailableError(
                "a worker process was ended before its first job; send the request again later"
            ) from None
        except TimeoutError:
            server.close()
            raise UnavailableError(
                f"a worker process did not start within {START_S:g} s; the machine is "
                "overloaded, or the tokenizer cannot be loaded: send the request again later"
            ) from None
        finally:
            if self._transport is None:
                self._ended.set()
                if sock is not None:
                    sock.close()

    @property
    def process(self) -> WorkerProcess:
        return self._started.result()

    @property
    def has_started(self) -> bool:
        return (
            self._started.done()
            and not self._started.cancelled()
            and self._started.exception() is None
        )

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    def ask(self, frame: bytes) -> None:
        """Send the job of this frame; wait for its end with :meth:`answer`."""
        self._asked = asyncio.get_running_loop().create_future()
        if self._transport is None or not self.alive:
            self._asked.set_exception(WorkerDied("lost"))
        else:
            self._began_cpu_s = self.process.cpu_s
            self._transport.write(frame)

    async def within(self, cpu_s: float) -> bool:
        """Wait until the job is answered or has used ``cpu_s`` seconds of processor time; returns
        whether it was answered."""
        assert self._asked is not None
        left, ends = cpu_s, time.monotonic() + WALL_S
        while not self._asked.done():
            await asyncio.wait({self._asked}, timeout=max(left, 0.01))
            left = cpu_s - (self.process.cpu_s - self._began_cpu_s)
            if left <= 0 or time.monotonic() > ends:
                break
        return self._asked.done()

    async def answer(self) -> Answer:
        """Wait for the job's answer. Raises WorkerDied."""
        assert self._asked is not None
        await asyncio.wait({self._asked}, timeout=WALL_S)
        if not self._asked.done() and self._transport is not None:
            self._end = "late"
            self.process.kill()
            self._transport.abort()
        return await asyncio.shield(self._asked)

    async def aclose(self) -> None:
        """End the worker; a running job ends as ``lost``. Safe to repeat."""
        self._closing = True
        if self.has_started:
            self.process.kill()
        if self._transport is not None:
            self._transport.abort()
        await self._ended.wait()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._closing:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._frames.feed(data)
        except WireError:
            assert self._transport is not None
            self._transport.abort()
            return
        for message in messages:
            match message:
                case Started(pid):
                    if not self._started.done():
                        self._started.set_result(WorkerProcess(pid))
                case Died(cause):
                    self._end = cause
                case _:
                    if self._asked is not None and not self._asked.done():
                        self._asked.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()
        for waiter in (self._started, self._asked):
            if waiter is not None and not waiter.done():
                waiter.set_exception(WorkerDied(self._end))
                waiter.exception()  # one that nobody awaits any more is not worth a warning
        if self.has_started:
            self.process.kill()
            self.process.release()
