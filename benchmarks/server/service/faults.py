"""Faults that are injected while others are served, and what they may excuse."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from service.asking import ask
from service.process import HOST, Served

KILL_EVERY_S = 320.0
"""An engine that lived for 300 s begins a new row of deaths: the server never gives up."""
FAULT_EVERY_S = 15.0
BACK_S = 240.0
"""Seconds for a new engine to be there, on a machine that is busy with other work."""

BAD_BODIES: tuple[bytes, ...] = (
    b"",
    b"{",
    b'{"model": 1}',
    b'{"model": "nobody", "prompt": "a"}',
    b'{"prompt": "a", "n": 1000000000}',
    b'{"prompt": "a", "temperature": NaN}',
    b'{"prompt": "a", "logprobs": 1000000}',
    b'{"prompt": [99999999]}',
    b'{"prompt": "\xff"}',
    b"[" * 100_000,
    json.dumps({"prompt": "a", "stop": ["x"] * 10_000}).encode(),
)


@dataclass
class Span:
    """A time in which requests may fail with ``code``."""

    code: str
    began: float
    ended: float = math.inf


class Faults:
    """Injects them at random times; knows when an error is the consequence of one."""

    def __init__(self, served: Served, generator: random.Random, kill_every_s: float) -> None:
        self._served = served
        self._random = generator
        self._kill_every_s = kill_every_s
        self._spans: list[Span] = []
        self._present: asyncio.Task[None] | None = None
        self.counts: Counter[str] = Counter()

    @property
    def engine_out(self) -> bool:
        """Whether there is no engine at this moment."""
        return any(s.code == "engine_dead" and s.ended == math.inf for s in self._spans)

    def excuse(self, code: str, began: float, ended: float) -> bool:
        """Whether a request that lived from ``began`` to ``ended`` may have failed with
        ``code``."""
        return any(
            span.code == code and span.began <= ended and began <= span.ended
            for span in self._spans
        )

    @contextlib.contextmanager
    def _excusing(self, code: str) -> Iterator[None]:
        span = Span(code, time.monotonic())
        self._spans.append(span)
        yield
        span.ended = time.monotonic()

    async def run(self) -> None:
        """Cause faults until ``stop``. Raises RuntimeError where the server does not come back from
        one."""
        next_kill = time.monotonic() + min(30.0, self._kill_every_s)
        while True:
            await asyncio.sleep(self._random.expovariate(1 / FAULT_EVERY_S))
            if time.monotonic() > next_kill:
                fault = self._end_engine
                next_kill = time.monotonic() + self._kill_every_s
            else:
                fault = self._random.choice(
                    (self._pause, self._abort_some, self._clear, self._crowd, self._garbage)
                )
            self._present = asyncio.ensure_future(fault())
            await asyncio.shield(self._present)

    async def stop(self, running: asyncio.Task[None]) -> None:
        """End ``run``, which is ``running``, and let a fault that has begun come to its end."""
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if self._present is not None:
            await self._present

    async def _end_engine(self) -> None:
        """Kill it, or stop it until the server does; once in a while the next one at once too."""
        pid = await self._engine_pid()
        with self._excusing("engine_dead"):
            if self.counts["engine killed"] > 2 * self.counts["engine hung"]:
                self.counts["engine hung"] += 1
                os.kill(pid, signal.SIGSTOP)
            else:
                self.counts["engine killed"] += 1
                os.kill(pid, signal.SIGKILL)
            await self._back(pid)
            if self._random.random() < 0.5:
                self.counts["engine killed at once again"] += 1
                pid = await self._engine_pid()
                os.kill(pid, signal.SIGKILL)
                await self._back(pid)

    async def _back(self, pid: int) -> None:
        deadline = time.monotonic() + BACK_S
        while await self._engine_pid() == pid or not await asyncio.to_thread(self._served.ready):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the engine is not back after {BACK_S:g} s")
            await asyncio.sleep(0.2)

    async def _engine_pid(self) -> int:
        return await asyncio.to_thread(lambda: self._served.engine_pid)

    async def _pause(self) -> None:
        """The engine stands still for a few seconds: no client is told, and none loses anything."""
        self.counts["engine stopped"] += 1
        pid = await self._engine_pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(self._random.uniform(0.5, 6.0))
        finally:
            os.kill(pid, signal.SIGCONT)

    async def _abort_some(self) -> None:
        everybody = self._random.random() < 0.2
        status = await asyncio.to_thread(self._served.status)
        names = [request["request_id"] for request in status["requests"]]
        wanted = [{"all": True}] if everybody else [{"request_id": name} for name in names[::5]]
        self.counts["aborted all" if everybody else "aborted some"] += 1
        for body in wanted:
            with self._excusing("aborted"):
                await asyncio.to_thread(self._served.post, "/admin/abort", body)

    async def _clear(self) -> None:
        self.counts["cache cleared"] += 1
        await asyncio.to_thread(self._served.post, "/admin/cache/clear", {})

    async def _crowd(self) -> None:
        """Connections that are opened and say nothing."""
        self.counts["silent crowds"] += 1
        opened = [await asyncio.open_connection(HOST, self._served.port) for _ in range(200)]
        await asyncio.sleep(1.0)
        for _, writer in opened:
            writer.transport.abort()

    async def _garbage(self) -> None:
        """What is no HTTP, and requests that are wrong in every manner: each must be refused."""
        self.counts["bad requests"] += len(BAD_BODIES)
        for garbage in (b"\x00" * 1000, b"GET / HTTP/9.9\r\n\r\n", b"POST /" + b"x" * 100_000):
            _, writer = await asyncio.open_connection(HOST, self._served.port)
            writer.write(garbage)
            with contextlib.suppress(OSError):
                await writer.drain()
            writer.transport.abort()
        for body in BAD_BODIES:
            asked = await ask(self._served.port, body)
            if asked.status is None or not (400 <= asked.status < 500 or asked.status == 503):
                raise RuntimeError(f"{body[:60]!r} was answered with status {asked.status}")
