"""Play a trace against the real scheduler and KV cache on a clock of modelled steps.

  penstock simulate trace.csv --calibration here.json --rate 2,4,8 --slo ttft:500ms
  penstock simulate trace.csv small:max_num_seqs=16 large:max_num_seqs=128 --calibration here.json
  penstock simulate trace.jsonl rr:replicas=8 sticky:replicas=8,routing=prefix --gpu H100 \\
      --model Qwen/Qwen3-8B --repeat 24

No model runs, so a day of traffic takes minutes. What steps take is measured on this machine
by penstock calibrate, or that of a roofline of an accelerator (--gpu). Each CONFIG is what one
server is started with, or several behind a router; docs/simulation.md says what is modelled.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from penstock.cli.bench_common import command_line, ended
from penstock.cli.bench_progress import BenchProgress
from penstock.cli.parser import UsageError
from penstock.cli.replayed_trace import check_times, replayed
from penstock.cli.simulate_options import RARE, add_options
from penstock.written_file import check_writable, write_json

if TYPE_CHECKING:
    from penstock.bench.load.workload import RecordedWorkload
    from penstock.service_level import Limit
    from penstock.simulate.fleet import Offered
    from penstock.simulate.outcome import SimulatedRun
    from penstock.simulate.setup import Setup

__all__ = ["RARE", "add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser)


@dataclass(frozen=True)
class _Load:
    """One load: a rate, the trace's times so many times as fast, a bound on open ones."""

    rate: float | None
    speed: float
    concurrency: int | None

    def __str__(self) -> str:
        told = f"{self.rate:g}/s" if self.rate is not None else f"{self.speed:g} x the trace"
        return told if self.concurrency is None else f"{told}, {self.concurrency} at once"


def run(args: argparse.Namespace) -> int:
    from penstock.bench.load.figures import NAMES
    from penstock.bench.progress import Stopped
    from penstock.cli.simulate_table import print_report
    from penstock.service_level import parse_limit
    from penstock.simulate.outcome import VERSION
    from penstock.simulate.report import SimulationReport, rankings

    if args.json is not None and str(args.json) != "-":
        check_writable("--json", args.json)
    limits = tuple(parse_limit(text) for text in args.slo)
    loads = list(_loads(args))
    _offered(args, loads[0])  # refused before anything is measured
    workload = _workload(args, loads[0])
    with BenchProgress() as progress:
        setups = [_with_disk(each, args.kv_disk_tokens) for each in _setups(args, progress)]
        done: list[tuple[_Load, list[SimulatedRun]]] = []
        partial = False
        try:
            for load in loads:
                done.append((load, []))
                workload = _workload(args, load)
                for setup in setups:
                    done[-1][1].append(_played(args, setup, workload, load, limits, progress))
        except Stopped:
            partial = True
    report = SimulationReport(
        version=VERSION,
        simulation=args.model or "the demo model",
        finished=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=shlex.join(["penstock", *command_line()]),
        partial=partial,
        workload={
            "name": workload.name,
            **{name: each for name, each in workload.described().items() if name != "speed"},
            "repeat": args.repeat,
            "num_prompts": args.num_prompts,
            "duration_s": args.duration,
            "seed": args.seed,
        },
        slo=list(limits),
        names={name: dict(other) for name, other in NAMES.items()},
        runs=[made for _, runs in done for made in runs],
        rankings=rankings([(str(load), runs) for load, runs in done], bool(limits)),
    )
    if str(args.json) == "-":
        text = msgspec.json.format(msgspec.json.encode(report), indent=2)
        sys.stdout.write(text.decode() + "\n")
    else:
        print_report(report)
        if args.json is not None:
            write_json(args.json, report)
    return ended(partial)


def _loads(args: argparse.Namespace) -> Iterator[_Load]:
    check_times(args.rate, args.speed, args.arrivals)
    several = [each for each in (args.rate, args.speed, args.concurrency) if each is not None]
    if sum(len(each) > 1 for each in several) > 1:
        raise UsageError("arguments --rate, --speed, --concurrency: several of one at most")
    for rate in args.rate or [None]:
        for speed in args.speed or [1.0]:
            for concurrency in args.concurrency or [None]:
                yield _Load(rate, speed, concurrency)


def _offered(args: argparse.Namespace, load: _Load) -> Offered:
    from penstock.bench.load.arrivals import parse_arrivals
    from penstock.simulate.fleet import Offered

    arrivals = None if load.rate is None else parse_arrivals(args.arrivals or "poisson", load.rate)
    conversations = None if args.num_prompts is None else args.num_prompts * args.repeat
    return Offered(arrivals, load.concurrency, conversations, args.duration, args.seed)


def _workload(args: argparse.Namespace, load: _Load) -> RecordedWorkload:
    from penstock.bench.load.trace_files import TraceScale

    return replayed(args.trace, TraceScale(args.scale, load.speed), args.num_prompts)


def _setups(args: argparse.Namespace, progress: BenchProgress) -> list[Setup]:
    from penstock.cli.simulate_configs import read_configs
    from penstock.simulate.calibration import Calibration
    from penstock.simulate.device_setups import on_device
    from penstock.simulate.machine_setups import Planned, measurable, on_this_machine
    from penstock.sizing.catalogue import Catalogue

    catalogue = Catalogue.load(args.catalogue)
    asked = read_configs(args.configs, args.model, args.ignore_config_field, catalogue)
    if args.gpu is not None:
        from penstock.cli.size import read_spec_of

        if args.calibration:
            raise UsageError("--calibration is of this machine, --gpu of another; leave one out")
        device = catalogue.find(args.gpu)
        spec = read_spec_of(args.model or None, args.ignore_config_field)
        return [on_device(each, spec, device) for each in asked]
    if args.catalogue is not None and all(each.network is None for each in asked):
        raise UsageError(
            "--catalogue is for --gpu and network=; name an accelerator, or leave it out"
        )
    planned = [Planned.of(each) for each in asked]
    calibrations = [Calibration.read(path) for path in args.calibration]
    if not calibrations:
        from penstock.cli.calibrate import calibrated

        for key in dict.fromkeys(each.key for each in planned):
            alike = [each for each in planned if each.key == key]
            neighbours = max(each.neighbours for each in alike)
            calibrations.append(calibrated(measurable(alike), progress, neighbours))
    return [on_this_machine(each, calibrations) for each in planned]


def _with_disk(setup: Setup, tokens: int | None) -> Setup:
    if tokens is None:
        return setup
    limits = setup.limits
    if setup.apart is not None or limits.states is not None or not limits.enable_prefix_caching:
        raise UsageError(
            f"--kv-disk-tokens: {setup.name} computes prompts apart, keeps states of sequences or "
            "caches no prefixes, and has no disk then"
        )
    blocks = tokens // limits.block_size
    return replace(setup, limits=replace(limits, disk_blocks=blocks))


def _played(
    args: argparse.Namespace,
    setup: Setup,
    workload: RecordedWorkload,
    load: _Load,
    limits: Sequence[Limit],
    progress: BenchProgress,
) -> SimulatedRun:
    from penstock.collector import paused
    from penstock.simulate.fleet import Fleet
    from penstock.simulate.outcome import outcome
    from penstock.simulate.repeated import repeated

    fleet = Fleet(setup, _offered(args, load))
    total = len(workload.recorded) * args.repeat
    progress.begin(f"{setup.name}, {load}", total, "requests")
    start = time.perf_counter()
    with paused():  # nothing of a run is in a cycle
        fleet.run(repeated(workload.recorded, args.repeat), lambda _: progress.advance(1))
    seconds = time.perf_counter() - start
    speed = load.speed if load.rate is None else None
    return outcome(fleet, limits, load.rate, speed, load.concurrency, seconds)
