"""Running the HTTP server: from a bound port and a started engine process to a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Generator
from dataclasses import dataclass

import uvicorn

from penstock.engine.async_llm import AsyncLLM
from penstock.engine.spawn import EngineChild
from penstock.server.app import ServerOptions, build_app

KEEP_ALIVE_S = 75
"""Longer than the 60 s for which common proxies and client pools keep a connection, so that it is
they who close it: a server that closes first can lose a request that is on its way."""


@dataclass(frozen=True)
class RunOptions:
    grace_s: int = 30
    """How long open requests may go on after the server was told to stop."""
    server: ServerOptions = ServerOptions()  # noqa: RUF009


async def serve(
    child: EngineChild,
    listener: socket.socket,
    options: RunOptions,
    on_ready: Callable[[AsyncLLM], None],
) -> None:
    """Serve until SIGINT or SIGTERM; the engine process has ended when this returns.

    ``listener`` is bound and not yet listening. On the first signal no more connections are
    accepted, and open requests have ``options.grace_s`` seconds; a second ends them at once.
    Raises what AsyncLLM.start raises.
    """
    loop = asyncio.get_running_loop()
    stop = _Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.ask)
    starting = loop.create_task(AsyncLLM.attach(child))
    stop.on_ask = starting.cancel
    try:
        llm = await starting
    except asyncio.CancelledError:
        if not stop.asked:
            raise
        return
    try:
        server = _Server(
            uvicorn.Config(
                build_app(llm, options.server),
                log_level="warning",
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=options.grace_s,
            )
        )
        stop.on_ask = server.stop
        server.on_started = lambda: on_ready(llm)
        if not stop.asked:
            await server.serve([listener])
    finally:
        await llm.aclose()


class _Stop:
    """What the signals mean at this point of the run."""

    def __init__(self) -> None:
        self.asked = False
        self.on_ask: Callable[[], object] = lambda: None

    def ask(self) -> None:
        self.asked = True
        self.on_ask()


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handling, which ends the process by the signal."""

    on_started: Callable[[], None]

    def stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.on_started()
