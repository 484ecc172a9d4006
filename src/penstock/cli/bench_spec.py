"""Time speculation against plain decoding: the same prompts, the same engine, in turns.

Each method is timed against plain decoding right before it, so that a machine that others use, too,
tells something. Outputs are compared: they must be the same. The formula is (1 - a^(K+1)) / (1 - a)
tokens a step for drafts of K tokens that are each accepted with probability a, as measured; the
speed-up by the formula is what that comes to if verifying took no time and drafting what it took.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.bench_common import (
    add_counts,
    add_json_argument,
    command_line,
    ended,
    engine_rows,
    machine_rows,
    partial_rows,
    print_table,
)
from penstock.cli.bench_progress import BenchProgress
from penstock.cli.main import EXIT_FAILED
from penstock.cli.options import (
    RARE_ENGINE,
    add_engine_arguments,
    engine_config,
    speculative_method,
)
from penstock.cli.prompts import add_prompt_arguments, read_prompts
from penstock.written_file import write_json

if TYPE_CHECKING:
    from penstock.bench.speculation import Scripted, SpecResult


RARE = RARE_ENGINE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser, skip={"speculative"})
    group = parser.add_argument_group("workload")
    group.add_argument(
        "--method",
        action="append",
        type=speculative_method,
        metavar="METHOD[:KEY=VALUE,...]",
        help="what --speculative would say; may be given several times (default: ngram)",
    )
    group.add_argument(
        "--scripted",
        action="append",
        type=_scripted,
        default=[],
        metavar="ALPHA,COST,K",
        help="drafts of K tokens, each right with probability ALPHA and made in COST times what a "
        "plain step takes, such as 0.8,0.1,4; may be given several times",
    )
    add_counts(
        group,
        ("--output-len", 128, "output tokens of each prompt"),
        ("--batch-size", 1, "requests that run together"),
        ("--repeats", 3, "measured runs of each"),
    )
    group.add_argument(
        "--temperature", type=float, default=0.0, metavar="X", help="0 is greedy (default: 0)"
    )
    add_prompt_arguments(parser)
    add_json_argument(parser)
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw speed-up and acceptance of every method beside the formula here "
        "(.svg, .png or .pdf; needs pip install 'penstock[plot]')",
    )


def run(args: argparse.Namespace) -> int:
    from penstock.bench.progress import Stopped
    from penstock.bench.report import report
    from penstock.bench.spec_plot import spec_figure
    from penstock.bench.speculation import Scripted, run_speculation
    from penstock.sampling.params import SamplingParams
    from penstock.speculative_config import Ngram, describe

    params = SamplingParams(
        temperature=args.temperature, max_tokens=args.output_len, ignore_eos=True, seed=0
    )
    params.validate()
    if args.plot is not None:
        from penstock.bench.plots.render import check_plot_file

        check_plot_file(args.plot)
    methods = [*(args.method or ([] if args.scripted else [Ngram()])), *args.scripted]
    prompts = read_prompts(args)
    with BenchProgress() as progress:
        found = run_speculation(
            engine_config(args), methods, prompts, params, args.batch_size, args.repeats, progress
        )
    results = found.results
    if not results:
        raise Stopped
    runs = sum(result.repeats for result in results)
    partial = runs < args.repeats * len(methods)
    done = f"{runs} of {args.repeats * len(methods)} runs, {len(results)} of {len(methods)} methods"
    ran = [] if found.engine is None else engine_rows(found.engine)
    print_table([*machine_rows(found.machine), *ran, *partial_rows(partial, done)])
    print()
    for result in results:
        print_table(_rows(result))
        print()
    if args.plot is not None:
        model = args.model or "the demo model"
        from penstock.bench.plots.render import write_plot

        about = f"{model}, {args.batch_size} at a time"
        write_plot(spec_figure(results, found.machine, about), args.plot, columns=3)
    if args.json is not None:
        workload = {
            "methods": [m.name if isinstance(m, Scripted) else describe(m) for m in methods],
            "prompts": len(prompts),
            "prompt_tokens": sum(map(len, found.workload.prompts)),
            "output_len": args.output_len,
            "temperature": args.temperature,
            "batch_size": args.batch_size,
            "repeats": args.repeats,
        }
        measured = {"partial": partial, "results": msgspec.to_builtins(results)}
        document = report(
            "spec",
            command_line(),
            workload,
            found.machine,
            measured,
            found.engine,
            args.batch_size,
        )
        write_json(args.json, document)
    return ended(partial) if all(result.same for result in results) else EXIT_FAILED


def _rows(result: SpecResult) -> list[tuple[str, str]]:
    """One method's table."""
    low, high = result.speedup_range
    positions = " ".join(f"{share:.0%}" for share in result.accepted_by_position)
    return [
        ("method", result.method),
        ("plain", f"{result.plain_tokens_per_s:,.1f} tokens/s"),
        ("with drafts", f"{result.tokens_per_s:,.1f} tokens/s"),
        (
            "speed-up",
            f"{result.speedup:.2f} (median of {result.repeats}; {low:.2f} to {high:.2f})",
        ),
        (
            "by the formula",
            f"{result.formula_speedup:.2f}, of which this is "
            f"{result.speedup / result.formula_speedup:.0%}",
        ),
        (
            "steps",
            f"{result.steps:.1f} a run, {result.steps_with_drafts:.1f} of them with drafts",
        ),
        (
            "tokens a draft",
            f"{result.tokens_per_draft:.2f}, {result.depth:.2f} deep, "
            f"{result.accepted_per_draft:.2f} accepted",
        ),
        (
            "accepted",
            f"{result.acceptance:.1%} each; of all drafts as far as each position {positions}",
        ),
        (
            "tokens a step",
            f"{1 + result.accepted_per_draft:.2f} with drafts; by the formula "
            f"{result.formula_tokens_per_step:.2f}",
        ),
        ("drafting", f"{result.draft_share:.1%} of the time"),
        ("outputs", "the same" if result.same else "DIFFERENT"),
    ]


def _scripted(text: str) -> Scripted:
    from penstock.bench.speculation import Scripted

    try:
        alpha, cost, length = text.split(",")
        scripted = Scripted(float(alpha), float(cost), int(length))
    except ValueError:
        raise argparse.ArgumentTypeError(f"not ALPHA,COST,K: {text!r} (like 0.8,0.1,4)") from None
    if not 0 <= scripted.alpha <= 1 or scripted.cost < 0 or not 1 <= scripted.num_tokens <= 16:
        raise argparse.ArgumentTypeError(
            f"ALPHA is from 0 to 1, COST at least 0 and K from 1 to 16, not {text!r}"
        )
    return scripted
