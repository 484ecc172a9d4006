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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.http_options import (
    RARE_HTTP,
    add_access_arguments,
    add_listen_arguments,
    add_log_arguments,
    check_tls,
    host_rule,
    log_options,
    seconds,
    tls,
)
from penstock.cli.listen import address_in_use, addresses, bind, raise_file_limit
from penstock.cli.main import drop_output
from penstock.cli.options import from_zero, positive_int

if TYPE_CHECKING:
    from penstock.router.fleet import Fleet
    from penstock.router.options import RouterOptions
    from penstock.router.replica import Replica
    from penstock.router.run import RunOptions

RARE: Final = RARE_HTTP | {
    *("--admin-key-file", "--assumed-cache", "--decode-tokens", "--lost", "--max-body"),
    "--uncached",
    *("--connect-timeout", "--answer-timeout", "--idle-timeout", "--probe-interval"),
    *("--resume-timeout", "--wait"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "urls", metavar="URL", nargs="+", help="http://HOST:PORT of a server, one or more"
    )
    group = parser.add_argument_group("the router")
    add_listen_arguments(group, port=9000)
    group.add_argument(
        "--max-body",
        type=positive_int,
        metavar="BYTES",
        help="the longest body that is taken (default: 33554432)",
    )
    add_access_arguments(group)
    _add_choice_arguments(parser)
    _add_server_arguments(parser)
    add_log_arguments(parser)


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
        "--uncached",
        type=from_zero,
        metavar="TOKENS",
        help="what a token of the prompt that is not in the cache counts, in tokens of work that "
        "stands before it (default: 3)",
    )
    group.add_argument(
        "--lost",
        type=from_zero,
        metavar="TOKENS",
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


def _add_server_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the servers")
    group.add_argument(
        "--resolve",
        action="store_true",
        help="each address that a URL's name has is a server of its own; names are looked up "
        "again at each probe",
    )
    group.add_argument(
        "--admin-key-file",
        type=Path,
        metavar="FILE",
        help="the admin key of Penstock's servers, instead of PENSTOCK_ADMIN_KEY (default: none)",
    )
    for name, kind, default, text in (
        ("--probe-interval", seconds, "2", "how often they are asked whether they are ready"),
        ("--connect-timeout", seconds, "5", "how long a connection may take"),
        (
            "--answer-timeout",
            seconds,
            "no limit",
            "how long the beginning of an answer may take, at each server",
        ),
        (
            "--idle-timeout",
            seconds,
            "120",
            "one that sends nothing for so long within an answer is gone",
        ),
        ("--wait", from_zero, "0", "how long a request waits for a server where none can take it"),
        (
            "--resume-timeout",
            from_zero,
            "30",
            "how long a stream that broke off waits for another server",
        ),
    ):
        group.add_argument(name, type=kind, metavar="SECONDS", help=f"{text} (default: {default})")


def run(args: argparse.Namespace) -> int:
    check_tls(args)
    raise_file_limit()
    with bind(args.host, args.port) as listener:
        import asyncio

        from penstock.router.replica import Member
        from penstock.router.run import route
        from penstock.server.keys import read_admin_key

        key = read_admin_key(args.admin_key_file)
        servers = [Member(url, key) for url in args.urls]
        host, port = listener.getsockname()[:2]
        options, running = _options(args, host), _running(args)
        scheme = "http" if args.tls_cert is None else "https"

        def announce(fleet: Fleet) -> None:
            where = " and ".join(f"{scheme}://{each}:{port}/v1" for each in addresses(listener))
            lines = [f"penstock routes at {where}", *map(_told, fleet.replicas)]
            try:
                print("\n".join(lines), flush=True)
            except OSError:  # it routes all the same
                drop_output()

        with address_in_use(host, port):
            asyncio.run(route(options, servers, listener, running, announce))
    return 0


def _told(replica: Replica) -> str:
    state = replica.state if not replica.trouble else f"{replica.state} ({replica.trouble})"
    models = "" if replica.models is None else f", {', '.join(sorted(replica.models))}"
    cache = ", reports its cache" if replica.reports else ""
    return f"  {replica.url}: {state}{models}{cache}"


def _options(args: argparse.Namespace, address: str) -> RouterOptions:
    from penstock.router.exchange import Timeouts
    from penstock.router.options import RouterOptions
    from penstock.routing.loads import LoadWeights

    given = {
        "assumed_tokens": args.assumed_cache,
        "probe_s": args.probe_interval,
        "wait_s": args.wait,
        "max_body_bytes": args.max_body,
        "resume_s": args.resume_timeout,
    }
    weights = {
        "decode_tokens": args.decode_tokens,
        "uncached": args.uncached,
        "lost": args.lost,
    }
    timeouts = {
        "connect": args.connect_timeout,
        "head": args.answer_timeout,
        "idle": args.idle_timeout,
    }
    return RouterOptions(
        policy=args.policy,
        weights=LoadWeights(**_set(weights)),
        timeouts=Timeouts(**_set(timeouts)),
        resolve=args.resolve,
        hosts=host_rule(args, address, keys_needed=False),
        cors_origins=tuple(args.cors_origin),
        **_set(given),
    )


def _running(args: argparse.Namespace) -> RunOptions:
    from penstock.router.run import RunOptions

    return RunOptions(
        grace_s=args.grace,
        request_timeout_s=args.request_timeout,
        logs=log_options(args),
        tls=tls(args),
    )


def _set(values: dict[str, Any]) -> dict[str, Any]:
    """Those that were given."""
    return {name: value for name, value in values.items() if value is not None}
