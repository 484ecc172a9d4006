"""Replay the lengths of a request trace on the engine, batched in flight and statically.

All requests are offered at once. In flight, a finished request's place is taken in the next step;
statically, --max-num-seqs requests start together and the next ones wait for the last of them.
Static batches run twice: as rectangles, with prompts padded to the longest and every row running
until the longest output is done, which is what static batching is where tensors are batched; and
unpadded, where the engine spares the baseline that work and only the waiting is left. All
run on the same engine in turn; each figure is the best of the repeats. The waste of KV cache
(slots that live requests hold and do not fill) is counted over a run without the model.

The trace is a .csv of Azure's LLM inference traces, with ContextTokens and GeneratedTokens.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.bench_common import (
    add_json_argument,
    add_trace_arguments,
    command_line,
    machine_rows,
    print_table,
)
from penstock.cli.options import add_engine_arguments, engine_config, positive_int
from penstock.cli.parser import UsageError

if TYPE_CHECKING:
    from penstock.bench.throughput import ThroughputResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser)
    group = parser.add_argument_group("workload")
    add_trace_arguments(group, 500)
    group.add_argument(
        "--scale",
        type=float,
        metavar="X",
        help="multiply all lengths; by default with what fits the longest into the model",
    )
    group.add_argument(
        "--repeats", type=positive_int, default=1, metavar="N", help="runs of each (default: 1)"
    )
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    if args.scale is not None and not args.scale > 0:
        raise UsageError("argument --scale: must be above 0")

    from penstock.bench.replay import ReplayLimits, replay_lengths, scaled
    from penstock.bench.session import Session, report, write_report
    from penstock.bench.throughput import StaticBatches, run_throughput
    from penstock.bench.workload import check_fit, fixed_lengths, random_requests, read_lengths

    lengths = read_lengths(args.trace, args.requests, args.scale or 1.0)
    with Session.open(engine_config(args)) as session:
        engine = session.engine_plan.config
        if args.scale is None:
            lengths = scaled(lengths, session.max_model_len)
        check_fit(lengths, session.max_model_len)
        waste = replay_lengths(
            lengths,
            ReplayLimits(engine.num_blocks, engine.max_num_seqs, engine.max_num_batched_tokens),
        )
        warm_up = random_requests(fixed_lengths(2, 16, 4), session.vocab_size, 1, "warm-up")
        run_throughput(session.core, session.meter, warm_up)

        modes = {
            "in_flight": None,
            "static": StaticBatches(engine.max_num_seqs, session.max_model_len),
            "static_unpadded": StaticBatches(engine.max_num_seqs),
        }

        def all_modes() -> dict[str, list[ThroughputResult]]:
            runs: dict[str, list[ThroughputResult]] = {name: [] for name in modes}
            for repeat in range(args.repeats):
                for i, (name, static) in enumerate(modes.items()):
                    # Prompts of their own, or a later run would find an earlier one's cached.
                    seed = len(modes) * repeat + i
                    requests = random_requests(lengths, session.vocab_size, seed, f"run{seed}")
                    runs[name].append(run_throughput(session.core, session.meter, requests, static))
            return runs

        runs, machine = session.measured(all_modes)
        bests = {
            name: max(results, key=lambda result: result.output_tokens_per_s)
            for name, results in runs.items()
        }
        best = bests["in_flight"]
        gains = {
            name: best.output_tokens_per_s / bests[name].output_tokens_per_s
            for name in ("static", "static_unpadded")
        }
        document = report(
            session,
            "replay azure",
            command_line(),
            {
                "trace": args.trace.name,
                "requests": len(lengths),
                "scale": args.scale or "to fit the longest request",
                "prompt_tokens": sum(n.prompt for n in lengths),
                "output_tokens": sum(n.output for n in lengths),
                "repeats": args.repeats,
            },
            machine,
            {
                **msgspec.to_builtins(best),
                "static": msgspec.to_builtins(bests["static"]),
                "static_unpadded": msgspec.to_builtins(bests["static_unpadded"]),
                "in_flight_over_static": gains["static"],
                "in_flight_over_static_unpadded": gains["static_unpadded"],
                "runs": {
                    name: [result.output_tokens_per_s for result in results]
                    for name, results in runs.items()
                },
                "kv_waste": waste.waste,
                "steps": waste.steps,
                "static_steps": waste.static_steps,
                "preemptions": waste.preemptions,
            },
        )
    print_table(
        [
            *machine_rows(machine),
            (
                "requests",
                f"{len(lengths)}, {best.prompt_tokens:,} prompt and {best.output_tokens:,} output "
                "tokens",
            ),
            ("in flight", _line(best)),
            ("static", _line(bests["static"])),
            ("unpadded", _line(bests["static_unpadded"])),
            (
                "gain",
                f"{gains['static']:.2f} times the output tokens per second of static batches, "
                f"{gains['static_unpadded']:.2f} times those of unpadded ones",
            ),
            ("KV waste", f"{waste.waste:.1%} of the slots that live requests hold"),
        ]
    )
    if args.json is not None:
        write_report(document, args.json)
    return 0


def _line(result: ThroughputResult) -> str:
    return (
        f"{result.output_tokens_per_s:,.1f} tokens/s in {result.seconds:.1f} s, "
        f"{result.mean_sequences_per_step:.1f} sequences a step, "
        f"first token p50 {result.ttft_s.p50:.2f} s, p99 {result.ttft_s.p99:.2f} s"
    )
