"""Time many requests offered at once: tokens per second, and what each request waited.

Prompts are random tokens and end-of-sequence is ignored, so every output has its full length.
Lengths are fixed, or those of a recorded trace.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.bench_common import (
    add_json_argument,
    command_line,
    ended,
    engine_rows,
    machine_rows,
    partial_rows,
    print_table,
    summary_rows,
)
from penstock.cli.bench_progress import BenchProgress
from penstock.cli.options import RARE_ENGINE, add_engine_arguments, engine_config, positive_int
from penstock.cli.parser import UsageError
from penstock.written_file import write_json

if TYPE_CHECKING:
    from penstock.bench.throughput import ThroughputResult


RARE = RARE_ENGINE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser)
    group = parser.add_argument_group("workload")
    for name, about in (
        ("--num-prompts", "requests (default: 64)"),
        ("--input-len", "prompt tokens of each (default: 128)"),
        ("--output-len", "output tokens of each (default: 64)"),
    ):
        group.add_argument(name, type=positive_int, metavar="N", help=about)
    group.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="take lengths from a request trace: Azure's .csv or Mooncake's .jsonl",
    )
    group.add_argument(
        "--scale", type=float, metavar="X", help="multiply a trace's lengths (default: 1)"
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    if args.trace is None and args.scale is not None:
        raise UsageError("argument --scale: only a --trace is scaled")
    if args.trace is not None and (args.input_len or args.output_len):
        raise UsageError("argument --trace: it gives the lengths; drop --input-len, --output-len")
    if args.scale is not None and not args.scale > 0:
        raise UsageError("argument --scale: must be above 0")

    from penstock.bench.report import report
    from penstock.bench.session import Session
    from penstock.bench.throughput import run_throughput
    from penstock.bench.traces import read_lengths
    from penstock.bench.workload import check_fit, fixed_lengths, random_requests

    count = args.num_prompts or 64
    if args.trace is not None:
        lengths = read_lengths(args.trace, count, args.scale or 1.0)
    else:
        lengths = fixed_lengths(count, args.input_len or 128, args.output_len or 64)
    with (
        BenchProgress() as progress,
        Session.open(engine_config(args), progress=progress) as session,
    ):
        check_fit(lengths, session.max_model_len)
        warm_up = random_requests(fixed_lengths(2, 16, 4), session.vocab_size, 1, "warm-up")
        run_throughput(session.core, session.meter, warm_up)
        requests = random_requests(lengths, session.vocab_size, 0)
        result, machine = session.measured(
            lambda: run_throughput(
                session.core,
                session.meter,
                requests,
                progress=progress,
                name=f"{len(requests)} requests",
            )
        )
        workload = {
            "num_prompts": len(lengths),
            "input_len": args.input_len or 128 if args.trace is None else None,
            "output_len": args.output_len or 64 if args.trace is None else None,
            "trace": args.trace.name if args.trace is not None else None,
            "scale": args.scale,
        }
        document = report(
            "throughput",
            command_line(),
            workload,
            machine,
            {
                **msgspec.to_builtins(result),
                "engine_stats": msgspec.to_builtins(session.core.stats()),
            },
            session.engine_plan,
        )
    done = partial_rows(result.partial, f"{result.requests} of {len(lengths)} requests")
    ran = engine_rows(session.engine_plan)
    print_table([*machine_rows(machine), *ran, *done, *_rows(result)])
    if args.json is not None:
        write_json(args.json, document)
    return ended(result.partial)


def _rows(result: ThroughputResult) -> list[tuple[str, str]]:
    """The table that is printed."""
    return [
        (
            "requests",
            f"{result.requests} in {result.seconds:.2f} s, {result.requests_per_s:,.2f}/s",
        ),
        (
            "output",
            f"{result.output_tokens_per_s:,.1f} tokens/s "
            f"({result.total_tokens_per_s:,.1f} with prompts)",
        ),
        *summary_rows(
            {
                "first token": result.ttft_s,
                "between tokens": result.itl_s,
                "per output token": result.tpot_s,
                "whole request": result.request_latency_s,
                "step": result.step_s,
            }
        ),
        ("host time", f"{result.step_host_us:.0f} us of each step"),
        ("batch", f"{result.mean_sequences_per_step:.1f} sequences a step"),
    ]
