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

from penstock.cli.bench_progress import BenchProgress
from penstock.cli.options import (
    RARE_ENGINE,
    add_engine_arguments,
    engine_config,
    engine_words,
)
from penstock.cli.parser import UsageError

RARE = RARE_ENGINE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser, skip=("speculative",))
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="write what was measured here"
    )


def run(args: argparse.Namespace) -> int:
    import msgspec

    from penstock.bench.machine import Speeds, describe_machine
    from penstock.cli.bench_common import print_table
    from penstock.cli.size_table import time_text
    from penstock.simulate.calibration import VERSION, Calibration, ModelKey
    from penstock.simulate.measured_server import NO_FRONT, measure_server
    from penstock.simulate.measured_steps import measure_steps
    from penstock.simulate.server_process import serving
    from penstock.simulate.setups import measured_setup
    from penstock.written_file import write_json

    config = engine_config(args)
    if args.out.is_dir():
        raise UsageError(f"argument --out: {args.out} is a folder; name a file")
    with BenchProgress() as progress:
        steps = measure_steps(config, progress)
        setup = measured_setup("calibrated", steps.engine_plan, steps.times, NO_FRONT)
        with serving(engine_words(config)) as url:
            server = measure_server(url, setup, progress)
    plan = steps.engine_plan
    made = Calibration(
        version=VERSION,
        made=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        model=config.model or "the demo model",
        key=ModelKey.of(
            plan.plan, plan.spec.architecture, plan.config.backend, plan.config.threads
        ),
        steps=steps.times,
        front=server.front,
        template=server.template,
        covered=steps.covered,
        machine=msgspec.to_builtins(
            describe_machine(Speeds(unmeasured="not needed"), plan.config.threads)
        ),
        checked=server.checked,
    )
    write_json(args.out, made)
    front, covered = server.front, steps.covered
    print_table(
        [
            ("model", f"{made.model}, {plan.config.threads} threads"),
            ("steps", f"the median error of the fit is {steps.times.error:.1%}"),
            (
                "measured",
                f"up to {covered.rows:,} tokens and {covered.sequences:,} sequences of a step, "
                f"contexts of {covered.context:,}",
            ),
            (
                "server",
                f"a request takes {time_text(front.request + front.answer)} besides its steps, a "
                f"step {front.step * 1e6:,.0f} us and {front.sequence * 1e6:,.1f} us a sequence",
            ),
            (
                "check",
                "simulated beside measured: "
                + ", ".join(f"{name} {value:+.1%}" for name, value in server.checked.items()),
            ),
            ("written", str(args.out)),
        ]
    )
    return 0
