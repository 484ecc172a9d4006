"""Route requests to several servers of OpenAI's API, by what their caches hold and what they do.

  penstock route http://one:8000 http://two:8000 --port 9000

Clients ask the router as they would ask one server: /v1/..., /tokenize; their keys are passed on.
/health, /ready and /metrics (Prometheus) are its own. Penstock's servers tell the router what their
caches hold, if it has their admin key (PENSTOCK_ADMIN_KEY), and continue each other's streams; of
other servers it remembers what it has sent there. Ctrl-C or SIGTERM stops taking requests, lets
open ones finish for --grace seconds, and exits; a second one exits at once. docs/routing.md says
more.
"""

from __future__ import annotations

import argparse
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.listen import addresses, bind, cannot_listen, raise_file_limit
from penstock.cli.main import drop_output
from penstock.cli.options import positive_int, whole_number
from penstock.cli.parser import UsageError
from penstock.cli.serve_options import host_name, port_number, seconds

if TYPE_CHECKING:
    from penstock.router.fleet import Fleet
    from penstock.router.options import RouterOptions
    from penstock.router.run import RunOptions

KEY_VARIABLE: Final = "PENSTOCK_ADMIN_KEY"
RARE = frozenset(
    {
        *("--admin-key-file", "--assumed-cache", "--decode-tokens", "--lost", "--max-body"),
        *("--connect-timeout", "--answer-timeout", "--idle-timeout", "--probe-interval"),
        *("--allowed-host", "--log-format", "--log-level"),
    }
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "urls", metavar="URL", nargs="+", help="http://HOST:PORT of a server, one or more"
    )
    group = parser.add_argument_group("the router")
    group.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    group.add_argument(
        "--port",
        type=port_number,
        default=9000,
        help="port to listen on; 0 picks one (default: 9000)",
    )
    group.add_argument(
        "--grace",
        type=whole_number,
        default=30,
        metavar="SECONDS",
        help="how long open requests may go on after a signal to stop (default: 30)",
    )
    group.add_argument(
        "--max-body",
        type=positive_int,
        metavar="BYTES",
        help="the longest body that is taken (default: 33554432)",
    )
    group.add_argument("--tls-cert", type=Path, metavar="FILE", help="serve HTTPS: certificates")
    group.add_argument("--tls-key", type=Path, metavar="FILE", help="serve HTTPS: private key")
    group.add_argument(
        "--allowed-host",
        action="append",
        type=host_name,
        default=[],
        metavar="NAME",
        help="a name or address by which clients may ask, beside localhost, this machine's name "
        "and its addresses; '*' for all; may be repeated",
    )
    _add_choice_arguments(parser)
    _add_replica_arguments(parser)
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


def _add_choice_arguments(parser: argparse.ArgumentParser) -> None:
    from penstock.routing.policies import POLICIES

    group = parser.add_argument_group("the choice")
    group.add_argument(
        "--policy",
        choices=tuple(POLICIES),
        default="cost",
        help="cost: least uncached prompt and work before it; the others are for comparison "
        "(default: cost)",
    )
    group.add_argument(
        "--decode-tokens",
        type=positive_int,
        metavar="N",
        help="what a sequence that decodes counts, in prompt tokens (default: 256)",
    )
    group.add_argument(
        "--lost",
        type=_share,
        metavar="SHARE",
        help="what computing a token costs besides where a cache is full, since another one is "
        "given up for it, in tokens (default: 0.25)",
    )
    group.add_argument(
        "--assumed-cache",
        type=positive_int,
        metavar="TOKENS",
        help="prompt tokens that a server is assumed to keep, where it does not report its cache "
        "(default: 524288)",
    )


def _add_replica_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("servers")
    group.add_argument(
        "--admin-key-file",
        type=Path,
        metavar="FILE",
        help=f"the admin key of Penstock's servers, instead of {KEY_VARIABLE} (default: none)",
    )
    for name, default, text in (
        ("--probe-interval", "2", "how often servers are asked whether they are ready"),
        ("--connect-timeout", "5", "how long a connection may take"),
        (
            "--answer-timeout",
            "no limit",
            "how long the begin of an answer may take, at each server",
        ),
        (
            "--idle-timeout",
            "120",
            "a server that sends nothing for so long within an answer is gone",
        ),
        ("--request-timeout", "no limit", "how long one request may take"),
    ):
        group.add_argument(
            name, type=seconds, metavar="SECONDS", help=f"{text} (default: {default})"
        )


def run(args: argparse.Namespace) -> int:
    from penstock.cli.serve import check_tls

    check_tls(args.tls_cert, args.tls_key)
    raise_file_limit()
    with bind(args.host, args.port) as listener:
        import asyncio

        from penstock.router.run import route

        options, running = _options(args, listener.getsockname()[0]), _running(args)
        host, port = listener.getsockname()[:2]
        scheme = "http" if args.tls_cert is None else "https"

        def announce(fleet: Fleet) -> None:
            where = " and ".join(f"{scheme}://{each}:{port}/v1" for each in addresses(listener))
            lines = [f"penstock routes at {where}", *map(_told, fleet.replicas)]
            try:
                print("\n".join(lines), flush=True)
            except OSError:  # it routes all the same
                drop_output()

        try:
            asyncio.run(route(options, listener, running, announce))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise cannot_listen(host, port, error) from None
    return 0


def _told(replica: object) -> str:
    from penstock.router.replica import Replica

    assert isinstance(replica, Replica)
    state = replica.state if not replica.trouble else f"{replica.state} ({replica.trouble})"
    models = "" if replica.models is None else f", {', '.join(sorted(replica.models))}"
    cache = ", reports its cache" if replica.reports else ""
    return f"  {replica.url}: {state}{models}{cache}"


def _options(args: argparse.Namespace, address: str) -> RouterOptions:
    from penstock.router.exchange import Timeouts
    from penstock.router.options import RouterOptions
    from penstock.routing.loads import LoadWeights
    from penstock.server.hosts import HostRule

    given = {
        "assumed_tokens": args.assumed_cache,
        "probe_s": args.probe_interval,
        "max_body_bytes": args.max_body,
    }
    weights = {"decode_tokens": args.decode_tokens, "lost": args.lost}
    timeouts = {
        "connect": args.connect_timeout,
        "head": args.answer_timeout,
        "idle": args.idle_timeout,
    }
    return RouterOptions(
        urls=tuple(args.urls),
        policy=args.policy,
        weights=LoadWeights(**_set(weights)),
        admin_key=_admin_key(args.admin_key_file),
        timeouts=Timeouts(**_set(timeouts)),
        hosts=HostRule.of(args.host, address, args.allowed_host, keys_needed=False),
        **_set(given),
    )


def _running(args: argparse.Namespace) -> RunOptions:
    from penstock.router.run import RunOptions
    from penstock.server.http_server import Tls
    from penstock.server.logs import LogOptions

    return RunOptions(
        grace_s=args.grace,
        request_timeout_s=args.request_timeout,
        logs=LogOptions(args.log_format, args.log_level, not args.no_access_log),
        tls=None if args.tls_cert is None else Tls(args.tls_cert, args.tls_key),
    )


def _set(values: dict[str, Any]) -> dict[str, Any]:
    """Those that were given."""
    return {name: value for name, value in values.items() if value is not None}


def _admin_key(path: Path | None) -> str | None:
    """The key in the file, or in the environment."""
    if path is None:
        key = os.environ.get(KEY_VARIABLE, "").strip()
        where = KEY_VARIABLE
    else:
        lines = path.read_text(encoding="utf-8", errors="replace").split()
        key, where = (lines[0] if lines else ""), str(path)
        if len(lines) != 1:
            raise UsageError(
                f"argument --admin-key-file: {path} must hold one key and nothing else"
            )
    if not key:
        return None
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UsageError(f"the key in {where} has characters that no key has")
    return key


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"not a number from 0 to 1: {text!r}")
    return share
