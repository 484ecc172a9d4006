"""How much of a trace's prompts a prefix cache finds, by the size of the cache.

Runs the real scheduler and cache without a model, over a .jsonl of Mooncake's traces: lengths, and
an id for every 512 prompt tokens that equal blocks share. Lengths are shrunk eight times; those of
a trace that 'penstock observe' wrote, with smaller blocks, stay as they are. "of all" compares with
a cache that forgets nothing and knows a prompt as it arrives.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING

from penstock.cli.bench_common import (
    add_json_argument,
    add_trace_arguments,
    command_line,
    ended,
    partial_rows,
    print_table,
)
from penstock.cli.bench_progress import BenchProgress
from penstock.cli.options import positive_int
from penstock.written_file import write_json

if TYPE_CHECKING:
    from penstock.bench.replay import PrefixReport

_DEFAULT_BLOCKS = (1000, 2000, 4000, 8000, 16000, 32000)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workload")
    add_trace_arguments(group, 1000)
    group.add_argument(
        "--blocks",
        type=positive_int,
        action="append",
        metavar="N",
        help=f"a cache size in blocks; may be given several times (default: {_DEFAULT_BLOCKS})",
    )
    group.add_argument(
        "--max-num-seqs",
        type=positive_int,
        default=16,
        metavar="N",
        help="requests that run together (default: 16)",
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from penstock.bench.machine import Speeds, describe_machine
    from penstock.bench.progress import Stopped
    from penstock.bench.replay import ReplayLimits, kept_tokens, prefix_curve
    from penstock.bench.report import report
    from penstock.bench.traces import read_mooncake
    from penstock.cache.geometry import BLOCK_SIZE

    trace = read_mooncake(args.trace, args.requests)
    sizes = args.blocks or _DEFAULT_BLOCKS
    with BenchProgress() as progress:
        curve = prefix_curve(trace, sizes, args.max_num_seqs, progress=progress)
    if not curve:
        raise Stopped
    partial = len(curve) < len(sizes)
    print_table(
        [
            *partial_rows(partial, f"{len(curve)} of {len(sizes)} sizes"),
            ("requests", f"{len(trace)}, {curve[0].prompt_tokens:,} prompt tokens"),
            ("to be found", f"{curve[0].infinite_hit_rate:.1%} of prompt tokens"),
        ]
    )
    print(f"\n{'blocks':>8}  {'tokens':>10}  {'found':>6}  of all")
    for point in curve:
        tokens = point.num_blocks * BLOCK_SIZE
        found, share = point.hit_rate, point.share_of_infinite
        print(f"{point.num_blocks:>8}  {tokens:>10,}  {found:>6.1%}  {share:>6.1%}")
    if args.json is not None:
        limits = ReplayLimits(max(sizes), args.max_num_seqs)
        workload = {
            "trace": args.trace.name,
            "requests": len(trace),
            "tokens_per_hash": kept_tokens(trace),
            "blocks": list(sizes),
            "block_size": limits.block_size,
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_batched_tokens,
        }
        # Of the figures none is a time, so the machine is named and not measured.
        machine = describe_machine(Speeds(unmeasured="nothing here depends on its speed"), 1)
        result = {"partial": partial, "curve": [_point(point) for point in curve]}
        document = report("replay mooncake", command_line(), workload, machine, result, None)
        write_json(args.json, document)
    return ended(partial)


def _point(point: PrefixReport) -> dict[str, object]:
    return {
        **dataclasses.asdict(point),
        "hit_rate": point.hit_rate,
        "infinite_hit_rate": point.infinite_hit_rate,
        "share_of_infinite": point.share_of_infinite,
    }
