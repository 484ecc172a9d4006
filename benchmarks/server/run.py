"""How fast ``penstock serve`` is, what a stream costs, and whether it endures.

    python benchmarks/server/run.py overhead
    python benchmarks/server/run.py streams
    python benchmarks/server/run.py neighbours
    python benchmarks/server/run.py soak --trace azure_llm_2023_conv.csv
    python benchmarks/server/run.py attack

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
from service import neighbours, overhead, soak, streams

RESULTS = Path(__file__).resolve().parent / "results"

Result = overhead.Overhead | streams.Streams | neighbours.Neighbours | soak.Soak | attack.Attack


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
        (RESULTS / f"{args.command}.json").write_bytes(text + b"\n")
    return 0 if ok else 1


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
    for each in (one, many, beside, two, bad):
        each.add_argument("--threads", type=int, default=os.cpu_count(), metavar="N")
        each.add_argument(
            "--save", action="store_true", help="keep the result in benchmarks/server/results"
        )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
