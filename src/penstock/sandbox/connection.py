"""An event loop's connection to one worker."""

from __future__ import annotations

import asyncio
import time

import msgspec

from penstock.sandbox import wire
from penstock.sandbox.jobs import Answer
from penstock.sandbox.process import WALL_S, WorkerDied, WorkerProcess


class Connection(asyncio.Protocol):
    """One worker, which does one job at a time. All methods belong to one event loop."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process
        self.tokenizer = ""
        """The path of the tokenizer that the worker has loaded."""
        self.first_bytes = 0
        """Its memory before its first job."""
        self._frames: wire.FrameBuffer[Answer] = wire.FrameBuffer(Answer)
        self._transport: asyncio.Transport | None = None
        self._asked: asyncio.Future[Answer] | None = None
        self._began_cpu_s = 0.0
        self._burial: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls) -> Connection:
        """Raises PenstockError if no process can be started."""
        connection = cls(WorkerProcess.spawn())
        connection.process.socket.setblocking(False)
        try:
            loop = asyncio.get_running_loop()
            await loop.create_unix_connection(lambda: connection, sock=connection.process.socket)
        except BaseException:
            connection.process.kill()
            connection.process.socket.close()
            connection.process.wait()
            raise
        return connection

    @property
    def alive(self) -> bool:
        return self._burial is None

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
            self.process.kill(late=True)
        return await asyncio.shield(self._asked)

    async def aclose(self) -> None:
        """End the worker; safe to repeat."""
        self.process.kill()
        if self._transport is not None:
            self._transport.close()
        self._bury()
        assert self._burial is not None
        await asyncio.shield(self._burial)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            answer = self._frames.feed(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.process.kill()
            return
        if answer is not None and self._asked is not None and not self._asked.done():
            self._asked.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._bury()

    def _bury(self) -> None:
        if self._burial is None:
            self._burial = asyncio.get_running_loop().create_task(self._collect())

    async def _collect(self) -> None:
        await asyncio.to_thread(self.process.wait)
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(WorkerDied(self.process.cause()))
            self._asked.exception()  # a job that nobody awaits any more is not worth a warning
