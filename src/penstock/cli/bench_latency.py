"""Time the steps of one fixed batch: prompt tokens per second, then tokens per second.

All requests arrive together with random prompts. Each figure is the best of the repeats, with the
median beside it; warm-up runs are not counted. The machine's memory bandwidth and peak arithmetic
are measured before and after.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from penstock.bench.digits import megabytes
from penstock.cli.bench_common import (
    add_counts,
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
from penstock.cli.options import RARE_ENGINE, add_engine_arguments, engine_config
from penstock.written_file import write_json

if TYPE_CHECKING:
    from penstock.bench.latency import LatencyResult, LatencyWorkload, PhaseSteps
    from penstock.bench.machine import Machine
    from penstock.bench.op_account import StepAccount
    from penstock.engine.loader import EnginePlan


RARE = RARE_ENGINE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # One token a sequence and step is what is timed here; `bench spec` times drafts.
    add_engine_arguments(parser, skip={"speculative"})
    group = parser.add_argument_group("workload")
    add_counts(
        group,
        ("--batch-size", 1, "requests that run together"),
        ("--input-len", 128, "prompt tokens of each"),
        ("--output-len", 64, "output tokens of each"),
        ("--repeats", 5, "measured runs"),
        ("--warmup", 1, "runs before them"),
    )
    group.add_argument(
        "--ops", action="store_true", help="account for the time of prompts and of steps, op by op"
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    from penstock.bench.account_table import LEGEND, account_table
    from penstock.bench.latency import LatencyWorkload, PhaseSteps, check_batch, run_latency
    from penstock.bench.meter import MeteredExecutor
    from penstock.bench.op_meter import OpMeter
    from penstock.bench.report import report
    from penstock.bench.session import Session
    from penstock.bench.workload import check_fit, fixed_lengths

    workload = LatencyWorkload(
        batch_size=args.batch_size,
        input_len=args.input_len,
        output_len=args.output_len,
        repeats=args.repeats,
        warmup=args.warmup,
    )
    phases = PhaseSteps()
    with (
        BenchProgress() as progress,
        Session.open(
            engine_config(args), OpMeter if args.ops else MeteredExecutor, progress
        ) as session,
    ):
        check_batch(workload.batch_size, session.engine_plan.config.max_num_seqs)
        check_fit(fixed_lengths(1, workload.input_len, workload.output_len), session.max_model_len)
        result, machine = session.measured(
            lambda: run_latency(
                session.core, session.meter, session.vocab_size, workload, phases, progress
            )
        )
        engine_plan = session.engine_plan
        weight_bytes = session.weight_bytes_of(workload.batch_size)
    accounts = _accounts(engine_plan, phases, machine) if args.ops else {}
    bandwidth = machine.read_bandwidth_bytes_per_s
    moved = weight_bytes + result.kv_bytes_per_step
    fraction = moved * result.steps_per_s / bandwidth if bandwidth else None
    done = partial_rows(result.partial, f"{len(result.runs)} of {workload.repeats} runs")
    print_table(
        [
            *machine_rows(machine),
            *engine_rows(engine_plan),
            ("workload", _workload(workload)),
            *done,
            *_rows(result, weight_bytes, fraction),
        ]
    )
    for name, each in accounts.items():
        print("\n" + account_table(name.replace("_", " "), each))
    if accounts:
        print("\n" + LEGEND)
    if args.json is not None:
        figures = {
            **msgspec.to_builtins(result),
            "decode_bandwidth_fraction": fraction,
            **({"ops": msgspec.to_builtins(accounts)} if accounts else {}),
        }
        document = report(
            "latency",
            command_line(),
            msgspec.to_builtins(workload),
            machine,
            figures,
            engine_plan,
            workload.batch_size,
        )
        write_json(args.json, document)
    return ended(result.partial)


def _accounts(
    engine_plan: EnginePlan, phases: PhaseSteps, machine: Machine
) -> dict[str, StepAccount]:
    """Where the time of prompts and of steps went, op by op, of all stages: of several ranks the
    first's. Floors are of its share of the machine; there are none of stages elsewhere."""
    from penstock.backends.cpu.turned import as_native
    from penstock.bench.op_account import Part, Steps, account

    config = engine_plan.config
    elsewhere = len(config.pipeline_stages)
    own = machine.among(config.tensor_parallel, config.pipeline_parallel - elsewhere)
    parts = [
        Part(as_native(plan), own if number >= elsewhere else machine.unknown())
        for number, plan in enumerate(engine_plan.first_plans)
    ]
    return {
        "prefill": account(parts, [Steps(s) for s in phases.prefill]),
        "decode_step": account(parts, [Steps([s]) for s in phases.decode]),
    }


def _workload(w: LatencyWorkload) -> str:
    requests = "1 request" if w.batch_size == 1 else f"{w.batch_size} requests at once"
    return (
        f"{requests}, {w.input_len:,} tokens in and {w.output_len:,} out; best and median of "
        f"{w.repeats} run{'s' * (w.repeats > 1)}"
    )


def _rows(
    result: LatencyResult, weight_bytes: int, fraction: float | None
) -> list[tuple[str, str]]:
    """The table that is printed. ``fraction``: of the read bandwidth, or None if not measured."""
    moved = weight_bytes + result.kv_bytes_per_step
    return [
        (
            "prefill",
            f"{result.prefill_tokens_per_s:,.1f} tokens/s "
            f"(median {result.prefill_tokens_per_s_median:,.1f})",
        ),
        (
            "decode",
            f"{result.decode_tokens_per_s:,.1f} tokens/s "
            f"(median {result.decode_tokens_per_s_median:,.1f})",
        ),
        ("first token", f"{result.ttft_s * 1e3:.2f} ms"),
        *summary_rows({"decode step": result.decode_step_s}),
        ("host time", f"{result.step_host_us:.0f} us of each decode step, sampling included"),
        (
            "bytes per step",
            f"{megabytes(weight_bytes)} weights, "
            f"{megabytes(result.kv_bytes_per_step)} keys and values{_cached(moved)}",
        ),
        *([("of bandwidth", f"{fraction:.1%} while decoding")] if fraction else []),
    ]


def _cached(moved: int) -> str:
    """What is said of so many bytes, where caches hold them from step to step."""
    from penstock.hardware import detect

    caches = detect().last_level_bytes
    if moved > caches:
        return ""
    return f" (both fit into caches of {megabytes(caches)})"
