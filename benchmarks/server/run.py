"""How fast ``penstock serve`` is, what a stream costs, and whether it endures.

    python benchmarks/server/run.py overhead
    python benchmarks/server/run.py streams
    python benchmarks/server/run.py neighbours
    python benchmarks/server/run.py soak --trace azure_llm_2023_conv.csv
    python benchmarks/server/run.py attack
    python benchmarks/server/run.py failover --servers 3
    python benchmarks/server/run.py autoscale
    python benchmarks/server/run.py caches --trace mooncake_conversation.jsonl

README.md beside this file says what is measured and how.
"""

from __future__ import annotations

import argparse
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from hostile import attack
from penstock.bench.machine import Machine, Speeds, describe_machine
from penstock.bench.redact import redacted_command
from penstock.bench.traces import read_mooncake
from service import (
    autoscale,
    caches,
    failover,
    fleets,
    neighbours,
    overhead,
    ray_fleet,
    soak,
    streams,
)

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"

Result = (
    overhead.Overhead
    | streams.Streams
    | neighbours.Neighbours
    | soak.Soak
    | attack.Attack
    | failover.Failover
    | autoscale.Autoscale
    | caches.Caches
)


class Record(msgspec.Struct, frozen=True):
    """A result with what it was measured on."""

    when: str
    command: str
    machine: Machine
    result: Result


def main() -> int:
    args = parse()
    result: Result
    if args.command == "overhead":
        workload = overhead.Workload(
            args.streams, args.prompt_len, args.output_len, args.rounds, args.threads
        )
        result, ok = overhead.measure(workload), True
    elif args.command == "streams":
        result, ok = streams.measure(args.streams, args.threads), True
    elif args.command == "attack":
        result = attack.measure(args.groups)
        ok = result.ok
    elif args.command == "neighbours":
        result, ok = neighbours.measure(args.seconds, args.threads), True
    elif args.command == "failover":
        result = failed_over(args)
        ok = result.ok
    elif args.command == "autoscale":
        result = autoscale.measure(words_of(args), scaling(args))
        ok = result.ok
    elif args.command == "caches":
        result, ok = cached(args), True
    else:
        options = soak.Options(
            args.trace.name, args.minutes, args.references, args.threads, args.seed
        )
        result = soak.measure(options, args.trace)
        ok = result.ok
    record = Record(
        datetime.now(UTC).isoformat(timespec="seconds"),
        redacted_command("benchmarks/server/run.py", sys.argv[1:]),
        describe_machine(Speeds(unmeasured="not needed here"), args.threads),
        result,
    )
    text = msgspec.json.format(msgspec.json.encode(record), indent=1)
    print(text.decode())
    if args.save:
        RESULTS.mkdir(exist_ok=True)
        name = "failover-deploy" if args.command == "failover" and args.deploy else args.command
        (RESULTS / f"{name}.json").write_bytes(text + b"\n")
    return 0 if ok else 1


def failed_over(args: argparse.Namespace) -> failover.Failover:
    options = failover.Options(
        *(args.minutes, args.every, args.clients, args.pause, args.seeds, args.tokens, args.seed)
    )
    words = words_of(args)
    if args.deploy:
        tables = f"[replicas]\nmin = {args.servers}\ncpus = {args.threads}"
        with ray_fleet.ray_fleet(tables, words) as on_ray:
            return failover.measure(on_ray, [*words, "--no-access-log"], options)
    words.append("--no-access-log")
    if args.url:
        return failover.measure(fleets.GivenFleet(args.url, args.victims), words, options)
    with fleets.own_fleet(args.servers, words, args.kill) as fleet:
        return failover.measure(fleet, words, options)


def cached(args: argparse.Namespace) -> caches.Caches:
    options = caches.Options(
        *(args.trace.name, args.requests, args.servers, args.clients, args.cache_mib, args.threads)
    )
    trace = read_mooncake(args.trace, args.requests)
    return caches.measure(options, trace, args.routes)


def words_of(args: argparse.Namespace) -> list[str]:
    """Options of the servers that answer."""
    if args.serve:
        return list(args.serve.split())
    return [
        *("--threads", str(args.threads), "--kv-cache-bytes", "32MiB"),
        *("--chat-template", str(HERE / "failover.jinja"), "--tool-call-parser", "hermes"),
    ]


def scaling(args: argparse.Namespace) -> autoscale.Options:
    return autoscale.Options(
        *(args.most, args.sequences, args.clients, args.up_after, args.down_after),
        *(args.hold, args.seeds, args.tokens),
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("overhead", help="tokens/s over HTTP against the offline engine's")
    one.add_argument("--streams", type=int, default=64, metavar="N")
    one.add_argument("--prompt-len", type=int, default=64, metavar="TOKENS")
    one.add_argument("--output-len", type=int, default=256, metavar="TOKENS")
    one.add_argument("--rounds", type=int, default=5, metavar="N", help="turns of each")
    many = commands.add_parser("streams", help="the memory of many open streams")
    many.add_argument("--streams", type=int, default=1000, metavar="N")
    beside = commands.add_parser("neighbours", help="a plain request beside demanding ones")
    beside.add_argument("--seconds", type=float, default=15.0, help="beside each kind of them")
    two = commands.add_parser("soak", help="a trace for a long time, with faults")
    two.add_argument("--trace", type=Path, required=True, metavar="FILE", help="Azure's, a .csv")
    two.add_argument("--minutes", type=float, default=30.0)
    two.add_argument("--references", type=int, default=200, metavar="N", help="different requests")
    two.add_argument("--seed", type=int, default=0, help="of requests, manners and faults")
    bad = commands.add_parser("attack", help="hostile input, with plain chats beside it")
    bad.add_argument(
        *("--groups", "-g"), nargs="+", choices=attack.GROUPS, default=attack.GROUPS, metavar="NAME"
    )
    over = commands.add_parser("failover", help="streams while their servers are killed")
    over.add_argument("--servers", type=int, default=3, metavar="N", help="behind penstock route")
    over.add_argument(
        *("--kill",),
        nargs="+",
        choices=fleets.VICTIMS,
        default=fleets.VICTIMS,
        metavar="PROCESS",
        help="which of their processes: guardian, server, engine (default: each in turn)",
    )
    over.add_argument(
        "--deploy", action="store_true", help="place the servers by penstock deploy, on Ray"
    )
    over.add_argument("--url", metavar="URL", help="of a fleet that is there, instead of --servers")
    over.add_argument(
        "--victims", metavar="COMMAND", help="with --url: prints process ids that may be killed"
    )
    over.add_argument(
        "--serve", metavar="WORDS", help="options of the servers (with --url: those they have)"
    )
    over.add_argument("--minutes", type=float, default=10.0)
    over.add_argument("--every", type=float, default=20.0, metavar="SECONDS", help="a kill")
    over.add_argument("--clients", type=int, default=6, metavar="N", help="streams at a time")
    over.add_argument("--pause", type=float, default=0.0, metavar="SECONDS", help="between two")
    over.add_argument("--seeds", type=int, default=3, metavar="N", help="for each kind of request")
    over.add_argument("--tokens", type=int, default=400, metavar="N", help="of an answer")
    over.add_argument("--seed", type=int, default=0, help="of requests and kills")
    scale = commands.add_parser("autoscale", help="a fleet on Ray while load rises and falls")
    scale.add_argument("--most", type=int, default=3, metavar="N", help="servers")
    scale.add_argument(
        "--sequences", type=float, default=2.0, metavar="N", help="that a server is meant to have"
    )
    scale.add_argument("--clients", type=int, default=6, metavar="N", help="streams at a time")
    scale.add_argument("--up-after", type=float, default=5.0, metavar="SECONDS")
    scale.add_argument("--down-after", type=float, default=10.0, metavar="SECONDS")
    scale.add_argument("--hold", type=float, default=15.0, metavar="SECONDS", help="at each load")
    scale.add_argument("--seeds", type=int, default=1, metavar="N", help="for each kind of request")
    scale.add_argument("--tokens", type=int, default=400, metavar="N", help="of an answer")
    scale.add_argument("--serve", metavar="WORDS", help="options of the servers")
    found = commands.add_parser("caches", help="what is found in several caches, beside one")
    found.add_argument("--trace", type=Path, required=True, metavar="FILE", help="Mooncake's")
    found.add_argument("--requests", type=int, default=1500, metavar="N", help="the first of it")
    found.add_argument("--servers", type=int, default=3, metavar="N")
    found.add_argument("--clients", type=int, default=12, metavar="N", help="requests at a time")
    found.add_argument("--cache-mib", type=int, default=384, metavar="MIB", help="of each server")
    found.add_argument(
        "--routes",
        nargs="+",
        default=["--policy cost", "--uncached 1", "--policy threshold", "--policy random"],
        metavar="WORDS",
        help="options of penstock route, a text for each run",
    )
    for each in (one, many, beside, two, bad, over, scale, found):
        each.add_argument("--threads", type=int, default=os.cpu_count(), metavar="N")
        each.add_argument(
            "--save", action="store_true", help="keep the result in benchmarks/server/results"
        )
    over.set_defaults(threads=1)
    found.set_defaults(threads=1)
    scale.set_defaults(threads=1)
    args = parser.parse_args()
    if args.command == "failover" and (args.url is None) != (args.victims is None):
        parser.error("--url and --victims go together")
    return args


if __name__ == "__main__":
    sys.exit(main())
