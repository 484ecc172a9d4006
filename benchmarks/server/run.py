"""How fast ``penstock serve`` is, what a stream costs, and whether it endures.

    python benchmarks/server/run.py overhead
    python benchmarks/server/run.py streams
    python benchmarks/server/run.py soak --trace azure_llm_2023_conv.csv

README.md beside this file says what is measured and how.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import msgspec

from service import overhead


def main() -> int:
    args = parse()
    if args.command == "overhead":
        workload = overhead.Workload(
            args.streams, args.prompt_len, args.output_len, args.rounds, args.threads
        )
        result = overhead.measure(workload)
        print(msgspec.json.format(msgspec.json.encode(result), indent=1).decode())
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("overhead")
    one.add_argument("--streams", type=int, default=64)
    one.add_argument("--prompt-len", type=int, default=64)
    one.add_argument("--output-len", type=int, default=256)
    one.add_argument("--rounds", type=int, default=5)
    one.add_argument("--threads", type=int, default=os.cpu_count())
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
