"""Running the router: from a bound port to a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.router.app import build_app
from penstock.router.fleet import Fleet
from penstock.router.options import RouterOptions
from penstock.router.probes import Prober
from penstock.server.connection import HEADERS_TIMEOUT_S
from penstock.server.errors import RETRY_AFTER_S, unavailable
from penstock.server.http_server import HttpServer, Tls
from penstock.server.logs import LogOptions, logging_to
from penstock.server.open_requests import OpenRequests

LAST_WORDS_S: Final = 2.0
_STOPPING: Final = "the router is shutting down"
_FIRST_LOOK_S: Final = 3.0
"""Seconds for which the first look at all replicas is waited for."""

_log = logging.getLogger("penstock.router")


@dataclass(frozen=True)
class RunOptions:
    grace_s: float = 30
    """Seconds that open requests may go on after the router was asked to stop."""
    request_timeout_s: float | None = None
    """Most seconds for a request; None means no limit."""
    logs: LogOptions = LogOptions()  # noqa: RUF009
    tls: Tls | None = None


async def route(
    options: RouterOptions,
    listener: socket.socket,
    run: RunOptions,
    on_ready: Callable[[Fleet], None],
) -> None:
    """Route until SIGINT or SIGTERM; ``listener`` is bound and not yet listening.

    ``on_ready`` is called once the router takes requests, be replicas ready or not. On the first
    signal it takes no more; open requests have ``run.grace_s`` seconds. A second one ends the
    process. Raises ConfigError for URLs that are none.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    fleet = Fleet(options)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    requests = OpenRequests(run.request_timeout_s)
    with logging_to(run.logs):
        probers = [Prober(fleet, replica) for replica in fleet.replicas]
        looks = [asyncio.ensure_future(prober.look()) for prober in probers]
        await asyncio.wait(looks, timeout=_FIRST_LOOK_S)
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)
        probing = [asyncio.ensure_future(prober.run()) for prober in probers]

        def started() -> None:
            gc.collect()
            gc.freeze()
            on_ready(fleet)

        http = HttpServer(build_app(fleet, requests), listener, HEADERS_TIMEOUT_S, started, run.tls)
        serving = asyncio.ensure_future(http.serve([listener]))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stopping.done():
                await _drain(requests, run.grace_s)
            http.should_exit = True
            await serving
        finally:
            for task in (stopping, *probing):
                task.cancel()
            await asyncio.gather(stopping, *probing, return_exceptions=True)
            with contextlib.suppress(OSError):
                fleet.close()


async def _drain(requests: OpenRequests, grace_s: float) -> None:
    """Refuse new work and wait for what is open; end and tell what is not done in time."""
    requests.draining = _STOPPING
    requests.stopping = True
    _log.warning("stopping: %d requests are open and have %g s", len(requests), grace_s)
    if await requests.wait_idle(grace_s):
        return
    ended = requests.end_all(unavailable(_STOPPING, "shutting_down", RETRY_AFTER_S))
    _log.warning("the grace is over: %d requests were ended", ended)
    await requests.wait_idle(LAST_WORDS_S)
