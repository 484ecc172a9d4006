"""Serve a model over the OpenAI API: /v1/completions, /v1/chat/completions, /v1/responses.

Also /health, /ready, /metrics (Prometheus), /version, and /admin for whoever has the admin key.
Ctrl-C or SIGTERM stops taking requests, lets open ones finish for --grace seconds, and exits; a
second one exits at once. docs/serve.md says more.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import math
import resource
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.options import add_engine_arguments, engine_config
from penstock.config import EngineConfig
from penstock.engine.spawn import EngineChild
from penstock.engine.startup import Ledger, describe, process_started_at
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.engine.async_llm import AsyncLLM
    from penstock.server.parsing.styles import Styles
    from penstock.server.run import RunOptions

STALL_S = 60
"""A connection whose peer takes nothing for so long is closed by the kernel: it reads no answer,
or it is gone without a word."""


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
        type=_whole,
        default=30,
        metavar="SECONDS",
        help="how long open requests may go on after a signal to stop (default: 30)",
    )
    group.add_argument(
        "--request-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="how long one request may take, waiting included (default: no limit)",
    )
    group.add_argument(
        "--max-waiting",
        type=_whole,
        default=1024,
        metavar="N",
        help="sequences that may wait beside those that run; more are refused with status 429 "
        "(default: 1024)",
    )
    group.add_argument(
        "--max-restarts",
        type=_whole,
        default=5,
        metavar="N",
        help="how often in a row an engine that died is restarted before the server gives up "
        "(default: 5)",
    )
    group.add_argument(
        "--step-timeout",
        type=_seconds,
        default=600.0,
        metavar="SECONDS",
        help="an engine that is in one step for so long is killed and restarted (default: 600)",
    )
    group.add_argument(
        "--stream-interval",
        type=_whole,
        default=50,
        metavar="MS",
        help="while many streams are open, tokens of one that come within this time share an "
        "event; 0 gives each its own, which costs a fast model throughput (default: 50)",
    )
    _add_answer_arguments(parser)
    _add_access_arguments(parser)
    _add_log_arguments(parser)


def _add_answer_arguments(parser: argparse.ArgumentParser) -> None:
    from penstock.server.parsing.styles import REASONING_CHOICES, TOOL_CHOICES

    group = parser.add_argument_group("chat answers")
    group.add_argument(
        "--tool-call-parser",
        choices=TOOL_CHOICES,
        default="auto",
        help="how the model writes calls of tools; auto looks into its chat template, none takes "
        "no tools (default: auto)",
    )
    group.add_argument(
        "--reasoning-parser",
        choices=REASONING_CHOICES,
        default="auto",
        help="how the model marks its reasoning, which becomes reasoning_content; none leaves it "
        "in the content (default: auto)",
    )


def _add_access_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("access")
    group.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="keys that clients must send, one a line; more may be in PENSTOCK_API_KEYS, "
        "separated by commas (default: anyone may ask)",
    )
    group.add_argument(
        "--admin-key-file",
        type=Path,
        metavar="FILE",
        help="the key for /admin, instead of PENSTOCK_ADMIN_KEY (default: nobody has it)",
    )
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="serve HTTPS: certificates")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="serve HTTPS: private key")
    group.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let pages of this origin ask from a browser, '*' for all; may be repeated",
    )


def _add_log_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("log, on standard error")
    group.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="(default: text)"
    )
    group.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="info has a line for each request (default: info)",
    )
    group.add_argument(
        "--no-access-log", action="store_true", help="leave out the lines for each request"
    )
    group.add_argument(
        "--log-prompts", action="store_true", help="put prompts and outputs into these lines"
    )


def run(args: argparse.Namespace) -> int:
    ledger = Ledger(process_started_at())
    _check_tls(args.tls_cert, args.tls_key)
    raise_file_limit()
    listener = bind(args.host, args.port)
    with listener:
        ledger.mark("python")
        config = engine_config(args)
        # First of all the engine's process, so that it loads while this one imports a server.
        child = EngineChild.spawn(config)
        try:
            _serve(child, config, listener, args, ledger)
        finally:
            child.kill()
    return 0


def bind(host: str, port: int, stall_s: float = STALL_S) -> socket.socket:
    """A TCP socket bound to the address, not yet listening; raises ConfigError naming the cause.

    Its connections inherit that the kernel ends them where the peer takes nothing for ``stall_s``.
    """
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
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stall_s * 1000))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(stall_s)))
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from None
    return listener


def raise_file_limit() -> None:
    """Let this process have as many files open as it is allowed to ask for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _serve(
    child: EngineChild,
    config: EngineConfig,
    listener: socket.socket,
    args: argparse.Namespace,
    ledger: Ledger,
) -> None:
    import asyncio

    from penstock import __version__
    from penstock.server.run import serve

    options = _options(args)
    host, port = listener.getsockname()[:2]
    scheme = "http" if options.tls is None else "https"
    url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def announce(llm: AsyncLLM) -> None:
        for phase in llm.ready.phases:
            ledger.mark(phase.name, phase.seconds)
        ledger.mark("server")
        model, resolved = llm.model, llm.ready.config
        print(f"penstock {__version__} serves {model.served_model_name} at {url}/v1")
        if resolved is not None:
            with_threads = "" if resolved.backend == "cuda" else f" with {resolved.threads} threads"
            print(
                f"  {resolved.model_path}: {resolved.dtype} on {resolved.backend}{with_threads}, "
                f"context {resolved.max_model_len} tokens, KV cache "
                f"{resolved.kv_cache_bytes / 2**20:.0f} MiB"
            )
            for note in resolved.notes:
                print(f"  note: {note}")
        for note in llm.ready.notes:
            print(f"  {note}")
        print(f"  {_styles(args, llm)}")
        if not options.server.keys.users and not _is_loopback(host):
            print(f"  note: anyone who reaches {host} may use this server; see --api-key-file")
        total = sum(phase.seconds for phase in ledger.phases)
        print(describe(ledger.phases, total), flush=True)

    try:
        asyncio.run(serve(child, lambda: EngineChild.spawn(config), listener, options, announce))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise _cannot_listen(host, port, error) from None


def _styles(args: argparse.Namespace, llm: AsyncLLM) -> Styles:
    from penstock.server.parsing.styles import Styles

    templates = llm.tokenizer.settings.chat_templates
    return Styles.choose(args.tool_call_parser, args.reasoning_parser, templates)


def _options(args: argparse.Namespace) -> RunOptions:
    from penstock.server.app import ServerOptions
    from penstock.server.keys import Keys
    from penstock.server.logs import LogOptions
    from penstock.server.run import RunOptions, Tls
    from penstock.server.supervisor import SupervisorOptions

    return RunOptions(
        grace_s=args.grace,
        request_timeout_s=args.request_timeout,
        server=ServerOptions(
            keys=Keys.read(args.api_key_file, args.admin_key_file),
            cors_origins=tuple(args.cors_origin),
            log_prompts=args.log_prompts,
            tool_call_parser=args.tool_call_parser,
            reasoning_parser=args.reasoning_parser,
        ),
        supervisor=SupervisorOptions(
            max_restarts=args.max_restarts,
            step_timeout_s=args.step_timeout,
            max_waiting=args.max_waiting,
            stream_interval_s=args.stream_interval / 1000,
        ),
        logs=LogOptions(args.log_format, args.log_level, not args.no_access_log),
        tls=None if args.tls_cert is None else Tls(args.tls_cert, args.tls_key),
    )


def _check_tls(certificate: Path | None, key: Path | None) -> None:
    """Raise ConfigError for what would fail once the model is loaded."""
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise ConfigError("HTTPS needs both --tls-cert and --tls-key")
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{certificate} and {key} are no certificate and its private key: "
            f"{error.strerror or error}"
        ) from None


def _no_password() -> str:
    raise ConfigError("the private key of --tls-key is encrypted; give one that is not")


def _is_loopback(host: str) -> bool:
    return host == "::1" or host.startswith("127.")


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


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"not a whole number from 0: {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"not a number of seconds above 0: {text!r}")
    return seconds
