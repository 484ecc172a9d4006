"""Running the router: from a bound port to a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.router.app import build_app
from penstock.router.fleet import Fleet
from penstock.router.members import Members
from penstock.router.options import RouterOptions
from penstock.router.replica import Member
from penstock.router.resolver import Resolver
from penstock.server.connection import HEADERS_TIMEOUT_S
from penstock.server.http_server import HttpServer, Tls
from penstock.server.logs import LogOptions, logging_to
from penstock.server.open_requests import OpenRequests
from penstock.server.stopping import drain, stop_signals

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
    servers: Sequence[Member],
    listener: socket.socket,
    run: RunOptions,
    on_ready: Callable[[Fleet], None],
) -> None:
    """Route until SIGINT or SIGTERM; ``listener`` is bound and not yet listening.

    ``on_ready`` is called once the router takes requests, be replicas ready or not. On the first
    signal it takes no more; open requests have ``run.grace_s`` seconds. A second one ends the
    process. Raises ConfigError for ``servers`` whose URLs are none, or the same.
    """
    stop = stop_signals()
    fleet = Fleet(options)
    members = Members(fleet)
    requests = OpenRequests(run.request_timeout_s)
    with logging_to(run.logs):
        resolving = None
        if options.resolve:
            resolver = Resolver(servers, members, options.probe_s)
            await resolver.look()
            resolving = asyncio.ensure_future(resolver.run())
        else:
            members.set(servers)
        await members.looked_at()

        def started() -> None:
            gc.collect()
            gc.freeze()
            on_ready(fleet)

        async def ending() -> None:
            if stop.is_set():
                await drain(requests, run.grace_s, "the router is shutting down", _log)

        http = HttpServer(build_app(fleet, requests), listener, HEADERS_TIMEOUT_S, started, run.tls)
        try:
            await http.serve_until(stop, ending)
        finally:
            if resolving is not None:
                resolving.cancel()
                await asyncio.gather(resolving, return_exceptions=True)
            await members.aclose()
            with contextlib.suppress(OSError):
                fleet.close()
            # Frozen cycles would outlive the interpreter, with the native tables in them, of which
            # their library then complains on standard error.
            gc.unfreeze()
