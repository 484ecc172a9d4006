"""Connections to one replica: HTTP/1.1, answers read as they come."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
from typing import Final, cast

import httptools

from penstock.errors import first_line
from penstock.router.exchange import Exchange, Headers, Timeouts, UpstreamError
from penstock.router.target import Target

_MAX_HEAD: Final = 64 << 10
"""Bytes of an answer's head."""
_KEPT: Final = 256
"""Idle connections to one replica."""
_RESET: Final = struct.pack("ii", 1, 0)
"""Linger for no time: to close then sends a reset (socket(7))."""
_SILENT_S: Final = 5.0
"""Seconds after which nothing more is expected of a replica that answers no probe either."""


class _Connection(asyncio.Protocol):
    """One connection, with one exchange at a time."""

    def __init__(self, idle: list[_Connection]) -> None:
        self._idle = idle
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: Exchange | None = None
        self._transport: asyncio.Transport | None = None
        self._head_bytes = 0
        self._keep = False
        self._delimited = False  # whether the answer says where it ends
        self._paused = False

    def begin(self, message: bytes, exchange: Exchange) -> None:
        """Send a request."""
        assert self._transport is not None
        self._exchange = exchange
        self._head_bytes = 0
        self._keep = False
        self._transport.write(message)

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def release(self, exchange: Exchange) -> None:
        if self._exchange is exchange:  # its answer is not whole, and nobody reads it
            self.abort()
            self._exchange = None

    def abort(self) -> None:
        """Close it at once. A replica that still answers learns by a reset that nobody reads on:
        the mere end of a connection could be that of a client which waits for its answer."""
        if self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        if self._exchange is not None and sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def pause(self) -> None:
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            if self.usable:
                assert self._transport is not None
                self._transport.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:  # what nobody asked for
            self.abort()
            return
        exchange.heard()
        if not exchange.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._broken("it changed the protocol")
        except httptools.HttpParserError as error:
            cause = (
                error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
            )
            self._broken(f"what it sent is no HTTP: {first_line(cause or error)}")
        else:
            if not exchange.status and self._head_bytes > _MAX_HEAD:
                self._broken(f"the head of its answer has more than {_MAX_HEAD >> 10} KiB")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        exchange, self._exchange = self._exchange, None
        self._transport = None
        if self in self._idle:
            self._idle.remove(self)
        if exchange is None:
            return
        if exc is None and exchange.status and not self._delimited:
            exchange.end()  # its end is the connection's
            return
        how = "it closed the connection" if exc is None else f"the connection broke ({exc})"
        if exchange.status:
            exchange.fail("body", f"{how} within its answer")
        else:
            exchange.fail("head", f"{how} before it answered")

    def _broken(self, message: str) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.fail("body" if exchange.status else "head", message)
        self.abort()

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._delimited = False
        self._found: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._found.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status, exchange = self._parser.get_status_code(), self._exchange
        if not 100 <= status < 600:
            raise ValueError(f"its status is {status}")
        if exchange is None or status < 200:
            return  # 100 Continue
        for name, value in self._found:
            if name == b"content-type":
                exchange.content_type = value.decode("latin-1").lower()
            elif name == b"content-length":
                self._delimited = True
                if value.isdigit():
                    exchange.length = int(value)
            elif name == b"transfer-encoding":
                self._delimited = True
        exchange.headers = self._found
        exchange.status = status
        self._keep = self._parser.should_keep_alive()
        exchange.began()

    def on_body(self, data: bytes) -> None:
        if self._exchange is not None:
            self._exchange.take(data)

    def on_message_complete(self) -> None:
        exchange = self._exchange
        if exchange is None or not exchange.status:
            return
        self._exchange = None
        self.resume()
        if self._keep and self._delimited and self.usable and len(self._idle) < _KEPT:
            self._idle.append(self)
        else:
            self.abort()
        exchange.end()


class Pool:
    """Connections to one replica, as many as are needed, the last used first."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._ssl: ssl.SSLContext | None = None
        self._idle: list[_Connection] = []
        self._open: set[Exchange] = set()

    async def exchange(
        self, method: str, path: str, headers: Headers, body: bytes, timeouts: Timeouts
    ) -> Exchange:
        """Send a request and wait for the head of its answer. ``path`` is without the target's
        prefix. Raises UpstreamError.

        A replica closes connections that were idle for long. Where one did so just now, nothing has
        come, and the request is sent once more over a new one. If there is none to be had, the
        replica has ended meanwhile, and the request may be why.
        """
        message = self._message(method, path, headers, body)
        connection = self._take()
        reused = was_reused = connection is not None
        while True:
            if connection is None:
                try:
                    connection = await self._connect(timeouts.connect)
                except UpstreamError as error:
                    error.blameless = not was_reused
                    raise
            exchange = Exchange(connection, timeouts, self._open.discard)
            self._open.add(exchange)
            connection.begin(message, exchange)
            try:
                await exchange.head()
                return exchange
            except UpstreamError as error:
                exchange.close()
                if not reused or exchange.begun or exchange.late:
                    raise error
                reused, connection = False, None
            except BaseException:
                exchange.close()
                raise

    async def fetch(
        self,
        method: str,
        path: str,
        headers: Headers,
        body: bytes,
        timeouts: Timeouts,
        limit: int,
    ) -> tuple[int, bytes]:
        """The status and the whole body, of at most ``limit`` bytes, of an answer. Raises
        UpstreamError."""
        exchange = await self.exchange(method, path, headers, body, timeouts)
        try:
            return exchange.status, await exchange.read_all(limit)
        finally:
            exchange.close()

    def give_up(self, why: str) -> None:
        """Fail the exchanges of which nothing has come for a while."""
        for exchange in list(self._open):
            if exchange.silent_s >= _SILENT_S:
                exchange.late = True
                exchange.fail("body" if exchange.status else "head", why)

    def close(self) -> None:
        """Close what is idle."""
        for connection in list(self._idle):
            connection.abort()

    def _message(self, method: str, path: str, headers: Headers, body: bytes) -> bytes:
        target = self._target
        lines = [
            f"{method} {target.prefix}{path} HTTP/1.1".encode("ascii"),
            b"host: " + target.authority.encode("ascii"),
            *(name + b": " + value for name, value in headers),
        ]
        if body or method not in ("GET", "HEAD", "DELETE", "OPTIONS"):
            lines.append(b"content-length: %d" % len(body))
        return b"\r\n".join(lines) + b"\r\n\r\n" + body

    def _take(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self, seconds: float) -> _Connection:
        target = self._target
        if target.tls and self._ssl is None:
            self._ssl = target.ssl_context()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                transport, connection = await loop.create_connection(
                    lambda: _Connection(self._idle), target.host, target.port, ssl=self._ssl
                )
        except TimeoutError:
            raise UpstreamError("connect", f"no connection within {seconds:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise UpstreamError(
                "connect",
                f"its certificate is not trusted here: {error.verify_message}; if it should be, "
                "name a file that has it by SSL_CERT_FILE",
            ) from None
        except ssl.SSLError as error:
            why = f"TLS: {first_line(error)}"
            if error.reason == "WRONG_VERSION_NUMBER":
                why = "it does not speak TLS; if it serves plain HTTP, its URL begins with http://"
            raise UpstreamError("connect", why) from None
        except socket.gaierror as error:
            raise UpstreamError("connect", f"its name: {error.strerror}") from None
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else first_line(error)
            raise UpstreamError("connect", why) from None
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
