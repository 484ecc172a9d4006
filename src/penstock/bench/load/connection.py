"""Connections to the server: HTTP/1.1, kept open from one request to the next."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import httptools

from penstock.bench.load.events import EventReader, NoStream, ServerError, shown
from penstock.bench.load.target import Target

_BUFFER: Final = 256 << 10
_MAX_BODY: Final = 32 << 20

State = Literal["sent", "answered", "ended"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request has no whole answer: its kind, of a few, and the words for it.

    It is no exception: those hold frames that hold them, and in a run the collector is off.
    """

    kind: str
    message: str

    def __str__(self) -> str:
        return self.message


class NotConnected(Exception):
    """There is no connection to the server."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.failure = Failure(kind, message)


class Exchange:
    """One request on its way, and what has come of it. Times are of ``time.perf_counter``."""

    __slots__ = (
        "_body",
        "content_type",
        "future",
        "headers_at",
        "last_at",
        "location",
        "received",
        "sent_at",
        "status",
        "stream",
        "tag",
    )

    def __init__(self, stream: EventReader | None, tag: int = 0) -> None:
        self.stream = stream
        self.tag = tag
        self.future: asyncio.Future[Failure | None] = asyncio.get_running_loop().create_future()
        self.sent_at = time.perf_counter()
        self.headers_at: float | None = None
        self.last_at = self.sent_at
        self.status = 0
        self.received = 0
        self.content_type = ""
        self.location = ""
        self._body = bytearray()

    @property
    def body(self) -> bytes:
        """What came, but for a stream's events."""
        return bytes(self._body)

    @property
    def streams(self) -> bool:
        return self.stream is not None and self.status == 200

    def take(self, data: bytes, now: float) -> None:
        """Take a part of the body. Raises NoStream and ServerError."""
        self.last_at = now
        if self.streams:
            assert self.stream is not None
            if not self.content_type.startswith("text/event-stream"):
                kind = self.content_type or "no type"
                raise NoStream(f"the answer is of {kind}, no stream of events: {shown(data)}")
            self.stream.feed(data, now)
        elif len(self._body) + len(data) > _MAX_BODY:
            raise NoStream(f"a body of more than {_MAX_BODY >> 20} MiB")
        else:
            self._body += data

    def fail(self, kind: str, message: str) -> None:
        if not self.future.done():
            self.future.set_result(Failure(kind, message))

    def end(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class Connection(asyncio.BufferedProtocol):
    """One connection, with one exchange at a time.

    It receives into a buffer that all connections share: what is in it is taken before the loop
    goes on.
    """

    def __init__(self, buffer: memoryview, free: Callable[[Connection], None]) -> None:
        self._buffer = buffer
        self._free = free
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._now = 0.0
        self._keep = True
        self._delimited = False  # whether the answer says where it ends
        self.transport: asyncio.Transport | None = None

    def begin(self, message: bytes, exchange: Exchange) -> None:
        """Send a request."""
        assert self.transport is not None
        self._exchange = exchange
        self.transport.write(message)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    @property
    def usable(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._now = time.perf_counter()
        exchange = self._exchange
        if exchange is None:  # what nobody asked for
            self.close()
            return
        exchange.received += nbytes
        exchange.last_at = self._now
        try:
            self._parser.feed_data(self._buffer[:nbytes])
        except httptools.HttpParserUpgrade:
            self._broken("protocol", "the server changed the protocol")
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__ or error.__cause__
            if isinstance(cause, ServerError):
                self._broken("server error", str(cause))
            else:
                self._broken("protocol", str(cause or error))
        except httptools.HttpParserError as error:
            self._broken("protocol", f"no HTTP: {error}: {shown(bytes(self._buffer[:nbytes]))}")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        exchange, self._exchange = self._exchange, None
        self.transport = None
        if exchange is None:
            return
        if error is None and exchange.status and not self._delimited:
            exchange.end()  # its end is the connection's
            return
        what = f"{error}" if error is not None else "the server closed the connection"
        behind = "before it answered" if not exchange.status else "within its answer"
        exchange.fail("reset", f"{what} {behind}")

    def _broken(self, kind: str, message: str) -> None:
        exchange, self._exchange = self._exchange, None
        self.close()
        if exchange is not None:
            exchange.fail(kind, message)

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._delimited = False

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        assert self._exchange is not None
        if lower == b"content-type":
            self._exchange.content_type = value.decode("latin-1").lower()
        elif lower == b"location":
            self._exchange.location = value.decode("latin-1")
        elif lower in (b"content-length", b"transfer-encoding"):
            self._delimited = True

    def on_headers_complete(self) -> None:
        exchange = self._exchange
        assert exchange is not None
        exchange.status = self._parser.get_status_code()
        exchange.headers_at = self._now
        self._keep = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        assert self._exchange is not None
        self._exchange.take(data, self._now)

    def on_message_complete(self) -> None:
        exchange = self._exchange
        if exchange is None or exchange.status < 200:  # 100 Continue
            return
        self._exchange = None
        if self._keep and self.usable:
            self._free(self)
        else:
            self.close()
        exchange.end()


class Pool:
    """Connections to one server, as many as are needed, the last used first."""

    def __init__(self, target: Target, connect_timeout_s: float = 10.0) -> None:
        self._target = target
        self._timeout = connect_timeout_s
        self._ssl = target.ssl_context()
        self._buffer = memoryview(bytearray(_BUFFER))
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()

    async def exchange(self, message: bytes, exchange: Exchange) -> Failure | None:
        """Send ``message`` and wait for its whole answer; a Failure where none comes.

        Servers close connections that were idle for long. Where one did so just now, nothing has
        come, and the request is sent once more over a new one.
        """
        connection = self._take()
        reused = connection is not None
        while True:
            try:
                connection = connection or await self._connect()
            except NotConnected as error:
                return error.failure
            try:
                connection.begin(message, exchange)
                failure = await exchange.future
            except asyncio.CancelledError:
                connection.close()
                raise
            finally:
                if not connection.usable:
                    self._all.discard(connection)
            if failure is None:
                return None
            connection.close()
            if not reused or failure.kind != "reset" or exchange.received:
                return failure
            reused, connection = False, None
            exchange.future = asyncio.get_running_loop().create_future()

    async def connect_time(self) -> float:
        """Seconds until a new connection stands: a round trip, and with TLS one or two more. Raises
        NotConnected."""
        start = time.perf_counter()
        connection = await self._connect()
        seconds = time.perf_counter() - start
        self._idle.append(connection)
        return seconds

    def close(self) -> None:
        for connection in self._all:
            connection.close()
        self._all.clear()
        self._idle.clear()

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            self._all.discard(connection)
        return None

    async def _connect(self) -> Connection:
        target = self._target
        loop = asyncio.get_running_loop()
        try:
            transport, connection = await asyncio.wait_for(
                loop.create_connection(
                    lambda: Connection(self._buffer, self._idle.append),
                    target.host,
                    target.port,
                    ssl=self._ssl,
                ),
                self._timeout,
            )
        except TimeoutError:
            raise NotConnected(
                "connect timeout", f"no connection to {target.url} within {self._timeout:g} s"
            ) from None
        except ssl.SSLError as error:
            raise NotConnected("tls", f"{target.url}: {error}") from None
        except socket.gaierror as error:
            raise NotConnected("dns", f"{target.host}: {error.strerror}") from None
        except OSError as error:
            raise NotConnected("connect", f"{target.url}: {error.strerror or error}") from None
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._all.add(connection)
        return connection
