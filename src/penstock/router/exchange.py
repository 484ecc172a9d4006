"""One answer of a replica, as it comes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from penstock.errors import PenstockError

Headers = Sequence[tuple[bytes, bytes]]
Stage = Literal["connect", "head", "body"]

_AHEAD: Final = 256 << 10
"""Bytes of a body that wait for a slow client before no more is read from the replica."""


class Connection(Protocol):
    """What an exchange needs of its connection."""

    def pause(self) -> None:
        """Read no more for now."""

    def resume(self) -> None:
        """Read on."""

    def abort(self) -> None:
        """Close it at once."""

    def release(self, exchange: Exchange) -> None:
        """The exchange is read no more."""


class UpstreamError(PenstockError):
    """A replica did not answer, or not to the end. ``stage`` says how far it came; ``blameless``,
    that the request cannot be the cause."""

    def __init__(self, stage: Stage, message: str, blameless: bool = False) -> None:
        super().__init__(message)
        self.stage = stage
        self.blameless = blameless or stage == "connect"


class EndedError(UpstreamError):
    """A replica said within its answer that it cannot go on with any."""


@dataclass(frozen=True)
class Timeouts:
    """Seconds."""

    connect: float = 5.0
    head: float | None = None
    """Time from the request to the head of its answer, which comes when the first token is there
    or, without a stream, when the whole answer is; None: no limit."""
    idle: float = 120.0
    """Time without a byte within a body."""


class Exchange:
    """One answer, from its head on. :meth:`close` must follow."""

    def __init__(
        self, connection: Connection, timeouts: Timeouts, closed: Callable[[Exchange], None]
    ) -> None:
        """``closed`` is called with it by :meth:`close`."""
        self._connection = connection
        self._closed = closed
        self._timeouts = timeouts
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.length: int | None = None
        """Bytes of the body, where the head tells."""
        self.content_type = ""
        self.begun = False
        """Whether any byte of the answer came."""
        self.late = False
        """Whether it was given up because nothing came in time."""
        self._pieces: deque[bytes] = deque()
        self._waiting = 0
        self._ended = False
        self._failure: UpstreamError | None = None
        self._loop = asyncio.get_running_loop()
        self._reader: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._silent_since = time.monotonic()
        self._head: asyncio.Future[None] = self._loop.create_future()

    @property
    def whole(self) -> bool:
        """Whether all of the answer has come."""
        return self._ended and self._failure is None

    async def read(self) -> bytes:
        """What has come of the body since the last call, b"" at its end. Raises UpstreamError."""
        while not self._pieces:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return b""
            if self._timer is None:
                self._timer = self._loop.call_later(self._timeouts.idle, self._look)
            # While nobody read, nothing may have been let in.
            self._silent_since = time.monotonic()
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._waiting = 0
        self._connection.resume()
        return data

    async def read_some(self, enough: int) -> bytes:
        """What comes of the body up to its end, or until it is more than ``enough`` bytes. Raises
        UpstreamError."""
        body = bytearray()
        while len(body) <= enough and (data := await self.read()):
            body += data
        return bytes(body)

    async def read_all(self, limit: int) -> bytes:
        """The whole body. Raises UpstreamError, also for one of more than ``limit`` bytes."""
        body = await self.read_some(limit)
        if len(body) > limit:
            raise UpstreamError("body", f"its answer has more than {limit} bytes")
        return body

    async def head(self) -> None:
        """Wait for status and headers. Raises UpstreamError."""
        try:
            async with asyncio.timeout(self._timeouts.head):
                await asyncio.shield(self._head)
        except TimeoutError:
            self.late = True
            self.fail("head", f"it did not begin to answer within {self._timeouts.head:g} s")
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Let the connection go: it serves the next request if the answer is whole."""
        if self._timer is not None:
            self._timer.cancel()
        self._connection.release(self)
        self._closed(self)

    @property
    def silent_s(self) -> float:
        """Seconds for which nothing came that was waited for."""
        return time.monotonic() - self._silent_since

    def _wake(self) -> None:
        reader = self._reader
        if reader is not None and not reader.done():
            reader.set_result(None)

    def _look(self) -> None:
        """Give the answer up if somebody waits for it and nothing has come for too long.

        One timer looks now and then: to set one for each piece would cost more than passing it on.
        """
        idle = self._timeouts.idle
        left = idle - self.silent_s
        if left <= 0 and self._reader is not None:
            self.fail("body", f"nothing came for {idle:g} s within its answer")
        else:
            self._timer = self._loop.call_later(max(left, idle / 8), self._look)

    # What the connection tells.

    def heard(self) -> None:
        self.begun = True
        self._silent_since = time.monotonic()

    def began(self) -> None:
        if not self._head.done():
            self._head.set_result(None)

    def take(self, data: bytes) -> None:
        self._pieces.append(data)
        self._waiting += len(data)
        self._wake()
        if self._waiting > _AHEAD:
            self._connection.pause()

    def end(self) -> None:
        self._ended = True
        self._wake()
        self.began()

    def fail(self, stage: Stage, message: str) -> None:
        if not self._ended and self._failure is None:
            self._failure = UpstreamError(stage, message)
            self._wake()
            self.began()
            self._connection.abort()
