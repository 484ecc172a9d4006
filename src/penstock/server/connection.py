"""One HTTP connection: uvicorn's, with a limit on how long it may take to ask something."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from penstock.server.acceptor import Place
from penstock.server.refusals import refusing

HEADERS_TIMEOUT_S = 30.0
REFUSAL_S = 2.0
"""For the head of a request on a connection that there is no room for."""
MAX_HEADER_BYTES = 64 << 10
_SCOPE_KEY = "penstock.pieces"


class PieceWriter:
    """Writes pieces of an answer of unknown length once its head was sent, past ASGI.

    Middleware and h11 have nothing to do with a piece: it is framed as one chunk and written, which
    spares the server a fifth of its processor time (benchmarks/server). Head and end go the usual
    way.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @classmethod
    def of(cls, scope: Scope) -> PieceWriter | None:
        """The one for this request; None where its answer is not sent in chunks."""
        writer: PieceWriter | None = scope.get(_SCOPE_KEY)
        return writer

    async def write(self, piece: bytes) -> None:
        """Returns at once unless the client reads slowly. Drops it where the client is gone."""
        cycle = self._cycle
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        assert cycle.response_started, "the head must be sent before"
        if piece and not cycle.disconnected and not cycle.response_complete:
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))


class Connection(H11Protocol):
    """Closes a connection whose client does not complete the head of a request in time.

    uvicorn limits how long a connection may be idle between two requests, but neither before the
    first nor while a head trickles in, so that a few clients could hold every file descriptor.
    """

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
        self._place = place
        if place.refused:
            headers_timeout_s = min(headers_timeout_s, REFUSAL_S)
        self._answer: ASGIApp = refusing(self.app) if place.refused else self.app
        self.app = self._with_writer
        self._headers_timeout_s = headers_timeout_s
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._relax()
        self.app = self._answer  # a cycle would outlive the connection
        self._place.leave()

    async def _with_writer(self, scope: Scope, receive: Receive, send: Send) -> None:
        # To an older client h11 sends no chunks, but all that comes until the connection ends.
        if scope["http_version"] == "1.1" and scope["method"] != "HEAD":
            scope[_SCOPE_KEY] = PieceWriter(self.cycle)
        if self._place.refused:
            self.cycle.keep_alive = False
        try:
            await self._answer(scope, receive, send)
        finally:
            scope.pop(_SCOPE_KEY, None)  # it knows the cycle, which knows the scope

    def _watch(self) -> None:
        """Run the clock while a head is expected, from its first byte or the connection's."""
        if self.transport.is_closing() or (
            self.cycle is not None and not self.cycle.response_complete
        ):
            self._relax()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self._headers_timeout_s, self._give_up)

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
