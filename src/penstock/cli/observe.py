"""Show the workload that a running server sees, and export it without text.

  penstock observe http://localhost:8000
  penstock observe http://localhost:8000 --since 1h --out trace.jsonl
  penstock observe http://localhost:8000 --follow
  penstock observe trace.jsonl

Of Penstock's servers: lengths of prompts and answers, arrivals, the four patterns, shared prefixes
and conversations. A trace has lengths, times and numbers of equal blocks, and 'penstock bench serve
URL --workload trace.jsonl' replays it. Where a server needs keys, this takes its admin key.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.cli.main import EXIT_INTERRUPTED
from penstock.cli.options import positive_int
from penstock.cli.parser import UsageError
from penstock.cli.server_key import server_key
from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.workload.observed_server import NotObservedError, ObservedServer

KEY_VARIABLE: Final = "PENSTOCK_ADMIN_KEY"
RARE = frozenset({"--interval", "--block-size", "--conversations", "--api-key-env"})

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_REST: Final = 20
"""What an answer takes, times this, is waited before the next: figures of all that a server ever
keeps take a second, and a server has other work."""
_CLEAR: Final = "\x1b[H\x1b[2J\x1b[3J"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="URL|FILE", help="http://HOST:PORT of a server, or a trace (.jsonl)"
    )
    parser.add_argument(
        "--since",
        type=_seconds,
        metavar="T",
        help="requests of the last T alone, such as 90s, 15m, 1h or 2d (default: all)",
    )
    parser.add_argument(
        "--follow", action="store_true", help="show it again and again, until Ctrl-C"
    )
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=5.0,
        metavar="T",
        help="how long to wait between two, with --follow (default: 5s)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the trace here")
    parser.add_argument(
        "--block-size",
        type=positive_int,
        metavar="N",
        help="prompt tokens that a number of the trace stands for, a multiple of 32: other "
        "programs read Mooncake's traces with 512 (default: 32)",
    )
    parser.add_argument(
        "--conversations",
        action="store_true",
        help="write requests that continue another one's answer as turns, which follow the answer "
        "in a replay, and find it in the cache",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    parser.add_argument(
        "--api-key-env",
        metavar="NAME",
        help="the environment variable that holds the server's admin key (default: "
        f"{KEY_VARIABLE}, if it is set)",
    )


def run(args: argparse.Namespace) -> int:
    for name in ("block_size", "conversations"):
        if getattr(args, name) and args.out is None:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"argument {option}: it is the trace's; name a file with --out")
    if args.conversations and args.block_size is not None:
        raise UsageError("argument --block-size: turns of --conversations have no blocks")
    path = Path(args.source)
    if "://" not in args.source and (path.is_file() or path.suffix == ".jsonl"):
        return _of_file(args, path)
    return _of_server(args)


def _of_server(args: argparse.Namespace) -> int:
    from penstock.workload.observed_server import NotObservedError, ObservedServer

    if args.follow and args.out is not None:
        raise UsageError("argument --out: a trace is written once; leave --follow out")
    server = ObservedServer(args.source, server_key(args.api_key_env, KEY_VARIABLE))
    if not args.follow:
        try:
            _show(server, args)
        except NotObservedError as error:
            return _of_metrics(server, args, error)
        if args.out is not None:
            from penstock.written_file import write_pieces

            write_pieces(args.out, _trace(server, args))
            print(
                f"\nwrote {args.out}; 'penstock bench serve URL --workload {args.out}' replays it"
            )
        return 0
    try:
        while True:
            began = time.monotonic()
            _show(server, args, _CLEAR if sys.stdout.isatty() else "")
            time.sleep(max(args.interval, _REST * (time.monotonic() - began)))
            if not sys.stdout.isatty():
                print()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _trace(server: ObservedServer, args: argparse.Namespace) -> Iterator[bytes]:
    """The trace that the options ask for, in pieces."""
    from penstock.workload.trace import coarser, decoded, encoded_lines

    pieces = server.trace(args.since)
    if args.conversations:
        from penstock.workload.conversations import as_conversations

        return encoded_lines(as_conversations(list(decoded(pieces))))
    return pieces if args.block_size is None else coarser(pieces, args.block_size)


def _show(server: ObservedServer, args: argparse.Namespace, before: str = "") -> None:
    from penstock.cli.observe_table import print_observed
    from penstock.written_file import write_json

    observed = server.observed(args.since)
    if before:
        print(before, end="")
    print_observed(f"{observed.model} at {server.url}", observed)
    sys.stdout.flush()
    if args.json is not None:
        write_json(args.json, observed)


def _of_metrics(server: ObservedServer, args: argparse.Namespace, error: NotObservedError) -> int:
    """Show what there is to say of a server that keeps nothing; raise the error if that is nothing,
    or is not what was asked for."""
    from penstock.cli.observe_table import print_metrics
    from penstock.written_file import write_json

    found = server.metrics() if args.out is None and args.since is None else None
    if found is None:
        needs = "; 'penstock serve' of this version does, and exports a trace"
        raise PenstockError(f"{error}{needs}") from None
    print_metrics(server.url, found)
    print(f"\n{error}: these are its metrics, which say nothing of arrivals or shared prefixes")
    if args.json is not None:
        write_json(args.json, found)
    return 0


def _of_file(args: argparse.Namespace, path: Path) -> int:
    from penstock.cli.observe_table import print_summary
    from penstock.workload.requests import ObservedRequests
    from penstock.workload.summary import summarize
    from penstock.workload.trace import read_lines
    from penstock.written_file import write_json

    for name in ("follow", "out"):
        if getattr(args, name):
            raise UsageError(f"argument --{name}: it is for servers; {path} is a trace")
    requests = ObservedRequests.of_trace([line for _, line in read_lines(path)])
    if not len(requests):
        raise ConfigError(f"{path} holds no request")
    since = float("-inf")
    if args.since is not None:
        since = float(requests.arrived[-1]) - args.since
        if since != since:
            raise UsageError(f"argument --since: the requests of {path} have no times")
    summary = summarize(requests, since)
    print_summary([("trace", str(path))], summary, of_day=False)
    if args.json is not None:
        write_json(args.json, {"file": path.name, "workload": summary})
    return 0


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd]?)", text)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"not a time such as 90s, 15m, 1h or 2d: {text!r}")
    return seconds
