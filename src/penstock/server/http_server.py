"""uvicorn's server with an accept loop and a connection of our own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from penstock.server.acceptor import Acceptor, ConnectionLimit, Place
from penstock.server.connection import Connection

KEEP_ALIVE_S = 75
"""Keep-alive timeout in seconds: longer than the 60 s of common proxies and client pools, so that
they close the connection. A server that closes first can lose a request on its way."""


@dataclass(frozen=True)
class Tls:
    certificate: Path
    key: Path


class HttpServer(uvicorn.Server):
    """uvicorn's server without its signal handling, which ends the process by the signal, and
    with an accept loop that limits the number of connections."""

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        headers_timeout_s: float,
        on_started: Callable[[], None],
        tls: Tls | None = None,
    ) -> None:
        """``listener`` is bound and not yet listening."""
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                proxy_headers=False,  # anybody on this machine could send them
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=1,
                ssl_certfile=None if tls is None else tls.certificate,
                ssl_keyfile=None if tls is None else tls.key,
            )
        )
        self._listener = listener
        self._headers_timeout_s = headers_timeout_s
        self._on_started = on_started

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        acceptor = Acceptor(
            self._listener,
            self._connection,
            ConnectionLimit.of_process(),
            self.config.ssl,
            self._headers_timeout_s,
        )
        acceptor.start()
        self.servers = [acceptor]  # type: ignore[list-item]  # asked to close, no more
        self.started = True
        self._on_started()

    async def serve_until(
        self,
        stop: asyncio.Event,
        ending: Callable[[], Awaitable[None]],
        watched: Sequence[asyncio.Future[None]] = (),
    ) -> None:
        """Serve until ``stop`` is set or one of ``watched`` is done, then await ``ending`` and end.

        Raises what the one of ``watched`` raised that was done, and OSError where another process
        listens on the address. When this returns all of ``watched`` have ended.
        """
        serving = asyncio.ensure_future(self.serve([self._listener]))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            waited: set[asyncio.Future[Any]] = {serving, stopping, *watched}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            ended = [each for each in watched if each.done()]
            await ending()
            self.should_exit = True
            await serving
            for each in ended:
                each.result()
        finally:
            tasks: list[asyncio.Future[Any]] = [stopping, *watched]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _connection(self, place: Place) -> asyncio.Protocol:
        return Connection(
            self.config,
            self.server_state,
            self.lifespan.state,
            headers_timeout_s=self._headers_timeout_s,
            place=place,
        )
