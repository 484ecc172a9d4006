"""Running the HTTP server: from a bound port and a started engine process to a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import time
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp

from penstock.engine.ipc.spawn import EngineChild
from penstock.frontend.async_llm import AsyncLLM
from penstock.frontend.input_processor import InputProcessor
from penstock.interface.loading import ProgressCallback, no_progress
from penstock.server.app import build_app
from penstock.server.connection import HEADERS_TIMEOUT_S
from penstock.server.http_server import HttpServer, Tls
from penstock.server.kept import Kept
from penstock.server.kserve.grpc_options import GrpcOptions
from penstock.server.logs import LineWriter, LogOptions, logging_to
from penstock.server.open_requests import OpenRequests
from penstock.server.openai.batches.batches import Batches
from penstock.server.options import ServerOptions
from penstock.server.setups import Setups
from penstock.server.stopping import drain, stop_signals
from penstock.server.supervisor import Supervisor, SupervisorOptions
from penstock.server.switch import Switch
from penstock.server.trace_options import TraceOptions

if TYPE_CHECKING:
    from penstock.server.tracing import Tracing

_STOPPING = "the server is shutting down"

_log = logging.getLogger("penstock.server")


@dataclass(frozen=True)
class RunOptions:
    grace_s: float = 30
    """Seconds that open requests may go on after the server was asked to stop."""
    request_timeout_s: float | None = None
    """Most seconds for a request, from its arrival to its last token; None means no limit."""
    headers_timeout_s: float = HEADERS_TIMEOUT_S
    """Most seconds for a request head, from its first byte or from the connection's start."""
    tokenizer: str = ""
    """Where the tokenizer is expected: it is loaded while the engine starts. Anything else, or
    nothing, only costs time."""
    chat_template: str = ""
    """What takes the place of the model's own chat template, if it is not empty."""
    server: ServerOptions = ServerOptions()  # noqa: RUF009
    supervisor: SupervisorOptions = SupervisorOptions()  # noqa: RUF009
    logs: LogOptions = LogOptions()  # noqa: RUF009
    tls: Tls | None = None
    traces: TraceOptions | None = None
    grpc: GrpcOptions | None = None
    guarded: bool = False
    """Whether a guardian passes signals on, and itself ends this process at the second signal."""


async def serve(
    child: EngineChild,
    setups: Setups,
    listener: socket.socket,
    options: RunOptions,
    on_ready: Callable[[AsyncLLM], None],
    progress: ProgressCallback = no_progress,
) -> None:
    """Serve until SIGINT or SIGTERM; the engine process has ended when this returns.

    ``child`` is the first engine, of the first of the ``setups``; one that replaces it is started
    with the setup in force. ``listener`` is bound and not yet listening. ``progress`` is told how
    the first engine loads. On the first signal the server is not ready any more and refuses work;
    open requests have ``options.grace_s`` seconds. A second signal ends the process, unless a
    guardian does that.
    Raises ConfigError for a folder of batches that cannot be used, what AsyncLLM.start raises, and
    EngineDeadError if engines keep dying.
    """
    began = time.monotonic()
    stop = stop_signals(options.guarded)
    asyncio.get_running_loop().set_exception_handler(on_loop_error)
    with logging_to(options.logs) as log:
        # First, so that a folder that cannot be used is told before an engine is waited for.
        kept = Kept(batches=Batches.open(options.server.batch_dir))
        # The inputs outlive engines.
        async with (
            contextlib.aclosing(kept.batches),
            contextlib.aclosing(InputProcessor(options.chat_template)) as inputs,
        ):
            inputs.expect(options.tokenizer)
            llm = await _start(child, stop, inputs, progress)
            if llm is None:
                return
            supervisor = Supervisor(llm, setups.first, options.supervisor)
            switch = Switch(supervisor, setups)

            def started() -> None:
                on_ready(llm)
                inputs.warm()  # only now, since it takes a second of a processor
                # What is loaded lives until the end. A body of many objects has the collector run,
                # which would walk all of it while everybody waits.
                gc.collect()
                gc.freeze()
                if options.server.restarts:
                    seconds = time.monotonic() - began
                    _log.warning("the server is back after %.1f s (pid %d)", seconds, os.getpid())

            try:
                with tracing_to(options.traces) as tracing:
                    await _serve(
                        supervisor, switch, listener, options, stop, log, tracing, started, kept
                    )
            finally:
                await switch.aclose()
                await supervisor.aclose()


@contextlib.contextmanager
def tracing_to(options: TraceOptions | None) -> Generator[Tracing | None, None, None]:
    """Trace to the collector that the options name, if any."""
    if options is None:
        yield None
        return
    from penstock.server.tracing import Tracing  # needs packages that are an extra

    tracing = Tracing.to_collector(options)
    try:
        yield tracing
    finally:
        tracing.close()


async def _start(
    child: EngineChild, stop: asyncio.Event, inputs: InputProcessor, progress: ProgressCallback
) -> AsyncLLM | None:
    """Return the engine once it is ready; None if the server was asked to stop before."""
    starting = asyncio.ensure_future(AsyncLLM.attach(child, inputs=inputs, progress=progress))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            return starting.result()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return None
    finally:
        stopping.cancel()


async def _serve(
    supervisor: Supervisor,
    switch: Switch,
    listener: socket.socket,
    options: RunOptions,
    stop: asyncio.Event,
    log: LineWriter,
    tracing: Tracing | None,
    on_ready: Callable[[], None],
    kept: Kept,
) -> None:
    requests = OpenRequests(options.request_timeout_s)
    app = build_app(
        supervisor, requests, options.server, switch, lambda: log.dropped, tracing, kept
    )
    http = HttpServer(app, listener, options.headers_timeout_s, on_ready, options.tls)
    watching = asyncio.ensure_future(supervisor.run())

    async def ending() -> None:
        switch.cancel()
        await kept.batches.aclose()  # nobody waits for what is open of them
        if not watching.done() and stop.is_set():
            await drain(requests, options.grace_s, _STOPPING, _log)

    async with beside_grpc(app, options):
        await http.serve_until(stop, ending, [watching])


@contextlib.asynccontextmanager
async def beside_grpc(app: ASGIApp, options: RunOptions) -> AsyncGenerator[None, None]:
    """Serve the application over gRPC as well, where the options say so."""
    if options.grpc is None:
        yield
        return
    from penstock.server.kserve.grpc.server import serving_grpc  # needs packages of an extra

    limit = options.server.max_body_bytes
    async with serving_grpc(app, options.grpc, limit, options.tls):
        yield


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that asyncio cannot raise to any caller."""
    error = context.get("exception")
    _log.error("%s", context.get("message", "an error outside any request"), exc_info=error)
