"""Serve a model over the OpenAI API: /v1/completions, /v1/chat/completions, /v1/models.

Also /health, /metrics (Prometheus) and /version. Ctrl-C or SIGTERM stops accepting requests,
lets open ones finish for --grace seconds, and exits.
"""

from __future__ import annotations

import argparse
import errno
import socket

from penstock.cli.options import add_engine_arguments, engine_config
from penstock.engine.spawn import EngineChild
from penstock.engine.startup import Ledger, describe, process_started_at
from penstock.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser)
    group = parser.add_argument_group("server options")
    group.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    group.add_argument(
        "--port", type=_port, default=8000, help="port to listen on; 0 picks one (default: 8000)"
    )
    group.add_argument(
        "--grace",
        type=_seconds,
        default=30,
        metavar="SECONDS",
        help="how long open requests may go on after a signal to stop (default: 30)",
    )


def run(args: argparse.Namespace) -> int:
    ledger = Ledger(process_started_at())
    listener = bind(args.host, args.port)
    with listener:
        ledger.mark("python")
        # First of all the engine's process, so that it loads while this one imports a server.
        child = EngineChild.spawn(engine_config(args))
        try:
            _serve(child, listener, args.grace, ledger)
        finally:
            child.kill()
    return 0


def bind(host: str, port: int) -> socket.socket:
    """A TCP socket bound to the address, not yet listening; raises ConfigError naming the cause."""
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_ADDRCONFIG
        )
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"--host {host!r} is no address of this machine: {error}") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # A restarted server may take over from connections of its predecessor that still close.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from None
    return listener


def _serve(child: EngineChild, listener: socket.socket, grace: int, ledger: Ledger) -> None:
    import asyncio

    from penstock import __version__
    from penstock.engine.async_llm import AsyncLLM
    from penstock.server.run import RunOptions, serve

    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def announce(llm: AsyncLLM) -> None:
        for phase in llm.ready.phases:
            ledger.mark(phase.name, phase.seconds)
        ledger.mark("server")
        model, config = llm.model, llm.ready.config
        print(f"penstock {__version__} serves {model.served_model_name} at {url}/v1")
        if config is not None:
            with_threads = "" if config.backend == "cuda" else f" with {config.threads} threads"
            print(
                f"  {config.model_path}: {config.dtype} on {config.backend}{with_threads}, "
                f"context {config.max_model_len} tokens, KV cache "
                f"{config.kv_cache_bytes / 2**20:.0f} MiB"
            )
            for note in config.notes:
                print(f"  note: {note}")
        for note in llm.ready.notes:
            print(f"  {note}")
        total = sum(phase.seconds for phase in ledger.phases)
        print(describe(ledger.phases, total), flush=True)

    try:
        asyncio.run(serve(child, listener, RunOptions(grace_s=grace), announce))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise _cannot_listen(host, port, error) from None


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"port {port} on {host} is in use; stop the server that has it, or choose another "
            "with --port (0 picks a free one)"
        )
    return ConfigError(f"cannot listen on {host} port {port}: {error.strerror}")


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"not a port from 0 to 65535: {text!r}")
    return int(text)


def _seconds(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"not a number of seconds: {text!r}")
    return int(text)
