"""Measure a model and its server on this machine, for penstock simulate.

  penstock calibrate --out here.json
  penstock calibrate Qwen/Qwen3-0.6B --quantization int8 --out qwen.json
  penstock simulate trace.csv --calibration here.json

It runs steps of all kinds for half a minute, then a server, which it loads for as long. Options of
the engine that change what a step takes (types of weights, of keys and values, threads) are those
to simulate; its limits may be others there.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.bench_progress import BenchProgress
from penstock.cli.options import (
    RARE_ENGINE,
    add_engine_arguments,
    engine_config,
    engine_words,
)
from penstock.written_file import check_writable, write_json

if TYPE_CHECKING:
    from penstock.config import EngineConfig
    from penstock.simulate.calibration import Calibration

RARE = RARE_ENGINE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser, skip=("speculative",))
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="write what was measured here"
    )


def run(args: argparse.Namespace) -> int:
    from penstock.cli.bench_common import print_table

    check_writable("--out", args.out)
    with BenchProgress() as progress:
        made = calibrated(engine_config(args), progress)
    write_json(args.out, made)
    print_table([*_rows(made), ("written", str(args.out))])
    return 0


def calibrated(config: EngineConfig, progress: BenchProgress) -> Calibration:
    """Measure what ``config`` runs here. Raises what loading a model and starting a server does."""
    import msgspec

    from penstock.bench.machine import Speeds, describe_machine
    from penstock.simulate.calibration import VERSION, Calibration, ModelKey
    from penstock.simulate.measured_server import NO_FRONT, measure_server
    from penstock.simulate.measured_steps import measure_steps
    from penstock.simulate.server_process import serving
    from penstock.simulate.setups import measured_setup

    steps = measure_steps(config, progress)
    plan = steps.engine_plan
    setup = measured_setup("calibrated", plan, steps.times, NO_FRONT)
    with serving(engine_words(config)) as url:
        server = measure_server(url, setup, progress)
    threads = plan.config.threads
    machine = describe_machine(Speeds(unmeasured="not needed"), threads)
    return Calibration(
        version=VERSION,
        made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        model=config.model or "the demo model",
        key=ModelKey.of(plan.plan, plan.spec.architecture, plan.config.backend, threads),
        steps=steps.times,
        front=server.front,
        template=server.template,
        covered=steps.covered,
        machine=msgspec.to_builtins(machine),
        checked=server.checked,
    )


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
        ("check", made.check),
    ]
