"""One HTTP connection: uvicorn's, with a time limit for the request head."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from penstock.server.acceptor import Place
from penstock.server.errors import ApiError
from penstock.server.half_closed import HalfClosed
from penstock.server.refusals import refusing
from penstock.server.strict_http import StrictConnection

HEADERS_TIMEOUT_S = 30.0
REFUSAL_S = 2.0
"""Seconds allowed for the request head on a connection that will be refused: too many are open."""
LINGER_S = 2.0
"""Seconds for which a client may go on sending unread data after its answer: if the connection were
closed before, the kernel would reset it and the answer would be lost."""
_SCOPE_KEY = "penstock.pieces"


class PieceWriter:
    """Writes pieces of a chunked response after its head was sent, past ASGI.

    Middleware and h11 take no part: a piece is framed as one chunk and written, which saves a fifth
    of the server's processor time (benchmarks/server). The head and the end go the usual way.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @classmethod
    def of(cls, scope: Scope) -> PieceWriter | None:
        """Return the writer of this request; None if its response is not chunked."""
        writer: PieceWriter | None = scope.get(_SCOPE_KEY)
        return writer

    async def write(self, piece: bytes) -> None:
        """Write a piece; wait only if the client reads slowly. It is dropped if the client is
        gone."""
        cycle = self._cycle
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        assert cycle.response_started, "the head must be sent before"
        if piece and not cycle.disconnected and not cycle.response_complete:
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))


class Connection(H11Protocol):
    """uvicorn's connection, with limits and an end that it leaves open.

    - The head of a request must come within some time. uvicorn limits how long a connection may be
      idle between two requests, but neither before the first nor while a head trickles in, so that
      a few clients could hold every file descriptor.
    - What is no valid request is answered in OpenAI's shape (:class:`StrictConnection`).
    - A client that ends its own side gets its answers (:class:`HalfClosed`); over TLS it cannot.
    - A client that still sends when it is answered for the last time gets that answer.
    """

    conn: StrictConnection

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        headers_timeout_s: float,
        place: Place,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = StrictConnection()
        self._place = place
        if place.refused:
            headers_timeout_s = min(headers_timeout_s, REFUSAL_S)
        self._answer: ASGIApp = refusing(self.app) if place.refused else self.app
        self.app = self._prepared
        self._headers_timeout_s = headers_timeout_s
        self._deadline: asyncio.TimerHandle | None = None
        self._half_closed: HalfClosed | None = None
        self._ended = False  # nothing is read any more, and what comes is thrown away

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        super().data_received(data)
        self._watch()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Handle the client's end of stream; True keeps the connection open for pending
        responses."""
        if self._ended or self.scheme == "https":
            return False
        if not self._answering and not self.conn.head_begun:
            return False
        self.conn.receive_data(b"")
        self.handle_events()  # refuses what is incomplete
        if self._ended or not self._answering:
            return False
        self._half_closed = HalfClosed(self.transport, self._probe, self.transport.abort)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._relax()
        if self._half_closed is not None:
            self._half_closed.stop()
            self._half_closed = None
        self.app = self._answer  # a cycle would outlive the connection
        self._place.leave()

    def _should_upgrade(self) -> bool:
        """False: a client that offers another protocol is answered in this one (RFC 9110, 7.8)."""
        return False

    def send_400_response(self, msg: str) -> None:
        """Answer the protocol error that ``conn`` found, if that is still possible, and stop
        reading."""
        cycle = self.cycle
        if self._answering:
            # Its request is broken off: the handler that waits for the rest of it learns that.
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self._ended = True
                self.transport.close()
                return
        status, trouble = self.conn.refusal
        error = ApiError(status, f"this is no HTTP request that can be served: {trouble}")
        body = error.json()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self._linger()

    def shutdown(self) -> None:
        if self._ended:
            self.transport.close()
        else:
            super().shutdown()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    async def _prepared(self, scope: Scope, receive: Receive, send: Send) -> None:
        cycle = self.cycle
        # To an older client h11 sends no chunks, but all that comes until the connection ends.
        if scope["http_version"] == "1.1" and scope["method"] != "HEAD":
            scope[_SCOPE_KEY] = PieceWriter(cycle)
        if self._place.refused:
            cycle.keep_alive = False
        cycle.transport = _Ending(self.transport, self._end)  # type: ignore[assignment]
        if cycle.waiting_for_100_continue:
            send = _closing_unless_continued(cycle, send)
        try:
            await self._answer(scope, receive, send)
        finally:
            # Neither may keep the other alive.
            scope.pop(_SCOPE_KEY, None)
            cycle.transport = self.transport

    def _probe(self) -> None:
        """Write something that an HTTP/1.1 client must ignore."""
        heard = self.scope["http_version"] != "1.1" or self.cycle.response_started
        if self._answering and not heard:
            interim = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
            self.transport.write(self.conn.send(interim))

    def _end(self) -> None:
        """Close the connection after the last response was written."""
        if self.conn.their_state in (h11.SEND_BODY, h11.ERROR):
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        self._ended = True
        self._relax()
        if not self.transport.can_write_eof() or self.conn.trailing_data[1]:
            self.transport.close()
            return
        self.transport.write_eof()
        self.flow.resume_reading()
        self._deadline = self.loop.call_later(LINGER_S, self.transport.abort)

    def _watch(self) -> None:
        """Run the timeout while a request head is expected, from its first byte or the connection's
        start."""
        if self._ended:
            return
        if self.transport.is_closing() or self._answering:
            self._relax()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self._headers_timeout_s, self._give_up)

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self._answering:
            self.transport.abort()


class _Ending:
    """The part of a transport that a response writer needs, with our own ``close``."""

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport, end: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = end


def _closing_unless_continued(cycle: RequestResponseCycle, send: Send) -> Send:
    """Close the connection after a response that was sent while the client still waited for 100
    Continue: it may send its body or not."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start" and cycle.waiting_for_100_continue:
            cycle.keep_alive = False
            headers = [*message.get("headers", ()), (b"connection", b"close")]
            message = {**message, "headers": headers}
        await send(message)

    return sending
