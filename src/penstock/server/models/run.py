"""Running a server of several models: from a bound port to a clean end."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.engine.ipc.spawn import DEFAULT_CORE
from penstock.frontend.open_sequences import MAX_WAITING
from penstock.repository.catalogue import Catalogue
from penstock.repository.repository import Repository
from penstock.server.http_server import HttpServer
from penstock.server.kept import Kept
from penstock.server.logs import logging_to
from penstock.server.models.admin import ReadCatalogue, Reloader
from penstock.server.models.app import build_models_app
from penstock.server.models.served import ModelLoader, ModelOptions
from penstock.server.open_requests import OpenRequests
from penstock.server.openai.batches.batches import Batches
from penstock.server.run import RunOptions, beside_grpc, on_loop_error, tracing_to
from penstock.server.stopping import drain, stop_signals

_STOPPING: Final = "the server is shutting down"

_log = logging.getLogger("penstock.server")


@dataclass(frozen=True)
class Models:
    """The models of a server, and how their engines are started."""

    catalogue: Catalogue
    read_again: ReadCatalogue
    """Reads the catalogue as it is then."""
    budget: int
    """Bytes for all that are loaded, where the catalogue says nothing."""
    max_waiting: int = MAX_WAITING
    core: str = DEFAULT_CORE


async def serve_models(
    models: Models,
    listener: socket.socket,
    options: RunOptions,
    on_ready: Callable[[], None],
) -> None:
    """Serve until SIGINT or SIGTERM; the engines have ended when this returns.

    ``listener`` is bound and not yet listening. SIGHUP has the catalogue read again. The end is as
    that of a server of one model: see :func:`penstock.server.run.serve`.
    """
    stop = stop_signals(options.guarded)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(on_loop_error)
    with logging_to(options.logs) as log, tracing_to(options.traces) as tracing:
        requests = OpenRequests(options.request_timeout_s)
        kept = Kept(batches=Batches.open(options.server.batch_dir))
        model_options = ModelOptions(
            requests=requests,
            kept=kept,
            server=options.server,
            supervisor=options.supervisor,
            dropped_log_lines=lambda: log.dropped,
            max_waiting=models.max_waiting,
            core=models.core,
        )
        loader = ModelLoader(model_options, lambda: repository.budget)
        repository = Repository(models.catalogue, loader, models.budget, models.max_waiting)
        reloader = Reloader(repository, models.read_again)
        reloading: set[asyncio.Task[None]] = set()

        def reload() -> None:
            task = asyncio.ensure_future(reloader.on_signal())
            reloading.add(task)
            task.add_done_callback(reloading.discard)

        def started() -> None:
            on_ready()
            gc.collect()
            gc.freeze()

        async def ending() -> None:
            await kept.batches.aclose()  # nobody waits for what is open of them
            if stop.is_set():
                await drain(requests, options.grace_s, _STOPPING, _log)

        loop.add_signal_handler(signal.SIGHUP, reload)
        app = build_models_app(repository, model_options, reloader, tracing)
        http = HttpServer(app, listener, options.headers_timeout_s, started, options.tls)
        repository.begin()
        try:
            async with beside_grpc(app, options):
                await http.serve_until(stop, ending)
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            await kept.batches.aclose()
            await repository.aclose()
