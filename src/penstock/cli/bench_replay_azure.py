"""Replay the lengths of a request trace on the engine, batched in flight and statically.

All requests are offered at once. In flight, a finished request's place is taken in the next step;
statically, --max-num-seqs requests start together and the next ones wait for the last of them.
Static batches run twice: as rectangles, with prompts padded to the longest and every row running
until the longest output is done, which is what static batching is where tensors are batched; and
unpadded, where the engine spares the baseline that work and only the waiting is left. All
run on the same engine in turn; each figure is the best of the repeats. The waste of KV cache
(slots that live requests hold and do not fill) is counted over a run without the model.

The trace is a .csv of Azure's LLM inference traces, or another that bench serve replays.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.cli.bench_common import (
    add_json_argument,
    add_trace_arguments,
    command_line,
    ended,
    engine_rows,
    machine_rows,
    partial_rows,
    print_table,
)
from penstock.cli.bench_progress import BenchProgress
from penstock.cli.options import RARE_ENGINE, add_engine_arguments, engine_config, positive_int
from penstock.cli.parser import UsageError
from penstock.written_file import write_json

if TYPE_CHECKING:
    from penstock.bench.machine import Machine
    from penstock.bench.progress import Progress
    from penstock.bench.replay import WasteReport
    from penstock.bench.session import Session
    from penstock.bench.throughput import ThroughputResult
    from penstock.bench.traces import Lengths


RARE = RARE_ENGINE


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


_SHORT: Final = {"static": "static", "static_unpadded": "unpadded"}
"""The modes of static batches, and what the table calls them."""


@dataclass(frozen=True)
class _Comparison:
    """The runs of each mode on one engine, and what the cache's books say of the same requests."""

    runs: dict[str, list[ThroughputResult]]
    waste: WasteReport
    wanted: int  # runs, of all modes together

    @property
    def partial(self) -> bool:
        """Whether it was stopped before all runs were done: what is not whole is left out."""
        return self.done < self.wanted

    @property
    def done(self) -> int:
        return sum(map(len, self.runs.values()))

    def best(self, mode: str) -> ThroughputResult:
        return max(self.runs[mode], key=lambda result: result.output_tokens_per_s)

    def gain(self, over: str) -> float:
        """How many times the output tokens per second of ``over`` the engine has in flight."""
        return self.best("in_flight").output_tokens_per_s / self.best(over).output_tokens_per_s

    @property
    def _others(self) -> list[str]:
        """The modes beside ``in_flight`` that have a run."""
        return [name for name in _SHORT if self.runs[name]]

    def fields(self) -> dict[str, object]:
        """The result's part of the report."""
        waste = self.waste
        return {
            **msgspec.to_builtins(self.best("in_flight")),
            "partial": self.partial,
            **{name: msgspec.to_builtins(self.best(name)) for name in self._others},
            **{f"in_flight_over_{name}": self.gain(name) for name in self._others},
            "runs": {
                name: [result.output_tokens_per_s for result in results]
                for name, results in self.runs.items()
            },
            "kv_waste": waste.waste,
            "steps": waste.steps,
            "static_steps": waste.static_steps,
            "preemptions": waste.preemptions,
        }

    def rows(self) -> list[tuple[str, str]]:
        """The table that is printed."""
        best = self.best("in_flight")
        return [
            (
                "requests",
                f"{best.requests}, {best.prompt_tokens:,} prompt and {best.output_tokens:,} output "
                "tokens",
            ),
            ("in flight", _line(best)),
            *((_SHORT[name], _line(self.best(name))) for name in self._others),
            *(
                (
                    "gain",
                    f"{self.gain(name):.2f} times the output tokens per second of "
                    f"{_SHORT[name]} batches",
                )
                for name in self._others
            ),
            ("KV waste", f"{self.waste.waste:.1%} of the slots that live requests hold"),
        ]


def run(args: argparse.Namespace) -> int:
    if args.scale is not None and not args.scale > 0:
        raise UsageError("argument --scale: must be above 0")

    from penstock.bench.replay import scaled
    from penstock.bench.report import report
    from penstock.bench.session import Session
    from penstock.bench.traces import read_lengths
    from penstock.bench.workload import check_fit

    lengths = read_lengths(args.trace, args.requests, args.scale or 1.0)
    with (
        BenchProgress() as progress,
        Session.open(engine_config(args), progress=progress) as session,
    ):
        if args.scale is None:
            lengths = scaled(lengths, session.max_model_len)
        check_fit(lengths, session.max_model_len)
        comparison, machine = _compare(session, lengths, args.repeats, progress)
        workload = {
            "trace": args.trace.name,
            "requests": len(lengths),
            "scale": args.scale or "to fit the longest request",
            "prompt_tokens": sum(n.prompt for n in lengths),
            "output_tokens": sum(n.output for n in lengths),
            "repeats": args.repeats,
        }
        document = report(
            "replay azure",
            command_line(),
            workload,
            machine,
            comparison.fields(),
            session.engine_plan,
        )
    done = partial_rows(comparison.partial, f"{comparison.done} of {comparison.wanted} runs")
    ran = engine_rows(session.engine_plan)
    print_table([*machine_rows(machine), *ran, *done, *comparison.rows()])
    if args.json is not None:
        write_json(args.json, document)
    return ended(comparison.partial)


def _compare(
    session: Session, lengths: Sequence[Lengths], repeats: int, progress: Progress
) -> tuple[_Comparison, Machine]:
    """Run requests of these ``lengths`` in every mode, ``repeats`` times in turn."""
    from penstock.bench.progress import Stopped
    from penstock.bench.replay import ReplayLimits, replay_lengths
    from penstock.bench.throughput import StaticBatches, run_throughput
    from penstock.bench.workload import fixed_lengths, random_requests

    engine = session.engine_plan.config
    limits = ReplayLimits(engine.num_blocks, engine.max_num_seqs, engine.max_num_batched_tokens)
    waste = replay_lengths(lengths, limits, progress)
    warm_up = random_requests(fixed_lengths(2, 16, 4), session.vocab_size, 1, "warm-up")
    run_throughput(session.core, session.meter, warm_up)
    modes = {
        "in_flight": None,
        "static": StaticBatches(engine.max_num_seqs, session.max_model_len),
        "static_unpadded": StaticBatches(engine.max_num_seqs),
    }

    wanted = repeats * len(modes)

    def all_modes() -> dict[str, list[ThroughputResult]]:
        runs: dict[str, list[ThroughputResult]] = {name: [] for name in modes}
        for seed, (name, static) in enumerate(list(modes.items()) * repeats):
            # Prompts of their own, or a later run would find an earlier one's cached.
            requests = random_requests(lengths, session.vocab_size, seed, f"run{seed}")
            told = f"run {seed + 1} of {wanted}, {_SHORT.get(name, 'in flight')}"
            try:
                result = run_throughput(
                    session.core, session.meter, requests, static, progress, told
                )
            except Stopped:
                break
            if result.partial:
                break
            runs[name].append(result)
        if not runs["in_flight"]:
            raise Stopped
        return runs

    runs, machine = session.measured(all_modes)
    return _Comparison(runs, waste, wanted), machine


def _line(result: ThroughputResult) -> str:
    return (
        f"{result.output_tokens_per_s:,.1f} tokens/s in {result.seconds:.1f} s, "
        f"{result.mean_sequences_per_step:.1f} sequences a step, "
        f"first token p50 {result.ttft_s.p50:.2f} s, p99 {result.ttft_s.p99:.2f} s"
    )
