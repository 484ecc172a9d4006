"""Measure a model and its server on this machine, for penstock simulate.

  penstock calibrate --out here.json
  penstock calibrate Qwen/Qwen3-0.6B --quantization int8 --out qwen.json
  penstock simulate trace.csv --calibration here.json

It runs steps of all kinds for half a minute, then a server, which it loads for two. Options of
the engine that change what a step takes (types of weights, of keys and values, threads) are those
to simulate; its limits may be others there.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.bench_progress import BenchProgress
from penstock.cli.options import (
    RARE_ENGINE,
    add_engine_arguments,
    engine_config,
    engine_words,
    whole_number,
)
from penstock.written_file import check_writable, write_json

if TYPE_CHECKING:
    from penstock.config import EngineConfig
    from penstock.engine.loader import EnginePlan
    from penstock.simulate.calibration import Calibration
    from penstock.simulate.recording import Recording

RARE = RARE_ENGINE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser, skip=("speculative",))
    parser.add_argument(
        "--neighbours",
        type=whole_number,
        default=0,
        metavar="N",
        help="also measure steps while N engines of the same options compute on other cores, as "
        "stages of one machine do, and engines with a role (default: 0)",
    )
    parser.add_argument(
        "--recording",
        type=Path,
        metavar="FILE",
        help="also write all that was measured here: times of requests and of steps, no texts",
    )
    parser.add_argument(
        "--refit",
        type=Path,
        metavar="FILE",
        help="measure nothing, and fit to this recording, of the same model and options",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="write what was measured here"
    )


def run(args: argparse.Namespace) -> int:
    from penstock.cli.bench_common import print_table
    from penstock.engine.loader import plan_engine
    from penstock.simulate.calibrating import calibration_of
    from penstock.simulate.recording import Recording

    check_writable("--out", args.out)
    config = engine_config(args)
    if args.refit is None:
        if args.recording is not None:
            check_writable("--recording", args.recording)
        with BenchProgress() as progress:
            found, plan = recorded(config, progress, args.neighbours)
        if args.recording is not None:
            found.write(args.recording)
    else:
        found, plan = Recording.read(args.refit), plan_engine(config)
    made = calibration_of(found, plan)
    write_json(args.out, made)
    print_table([*_rows(made), ("written", str(args.out))])
    return 0


def calibrated(config: EngineConfig, progress: BenchProgress, neighbours: int = 0) -> Calibration:
    """Measure what ``config`` runs here, and what its steps take beside so many ``neighbours``.
    Raises what loading a model and starting a server does."""
    from penstock.simulate.calibrating import calibration_of

    return calibration_of(*recorded(config, progress, neighbours))


def recorded(
    config: EngineConfig, progress: BenchProgress, neighbours: int = 0
) -> tuple[Recording, EnginePlan]:
    """Measure what ``config`` runs here. Raises what loading a model and starting a server does."""
    import msgspec

    from penstock.bench.machine import Speeds, describe_machine
    from penstock.hardware import detect
    from penstock.simulate.calibrating import record
    from penstock.simulate.configuration import refuse
    from penstock.threads import choose_threads

    refuse(
        config,
        ("pipeline_parallel", "pipeline_stages"),
        "is not calibrated as a whole: a stage's steps are a part of those of one process, so "
        "calibrate that, with the threads of a stage (--threads), and simulate the stages",
    )
    threads = choose_threads(config.threads, detect()).count
    machine = describe_machine(Speeds(unmeasured="not needed"), threads)
    return record(config, engine_words(config), progress, neighbours, msgspec.to_builtins(machine))


def _rows(made: Calibration) -> list[tuple[str, str]]:
    from penstock.cli.size_table import time_text
    from penstock.threads import format_count

    front, covered = made.front, made.covered
    return [
        ("model", f"{made.model}, {format_count(made.key.threads)}"),
        ("steps", f"the median error of the fit is {made.steps.error:.1%}"),
        (
            "measured",
            f"up to {covered.rows:,} tokens and {covered.sequences:,} sequences of a step, "
            f"contexts of {covered.context:,}",
        ),
        (
            "server",
            f"a request takes {time_text(front.request + front.answer)} besides its steps, and "
            f"{front.lost_request * 1e6:,.0f} us of others'; a step {front.step * 1e6:,.0f} us "
            f"more, and {front.sequence * 1e6:,.1f} us a sequence",
        ),
        *_beside(made),
        ("check", "" if made.checked is None else str(made.checked)),
    ]


def _beside(made: Calibration) -> list[tuple[str, str]]:
    """What neighbours cost."""
    if made.beside is None:
        return []
    one, many = (made.beside.of_rows(n) / made.steps.of_rows(n) for n in (1, made.steps.tokens[-1]))
    others = "another engine" if made.neighbours == 1 else f"{made.neighbours} other engines"
    told = f"a token takes {one:.2f} times as long beside {others}, the largest step {many:.2f}"
    return [("neighbours", told)]
