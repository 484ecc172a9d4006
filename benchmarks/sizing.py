"""Compare what ``penstock size --this-machine`` predicts with what the engine does.

The machine is calibrated once, by the made-up model of ``bench/calibration_model.py``; then dummy
weights of published shapes run in each type of weights, and each figure stands beside its
prediction: decode steps of 1, 8 and 32 sequences, and prompts of 512 and 2,048 tokens. The last
column is the roofline of the machine's measured bandwidth and peaks, the bound that knows no
caches, rows or barriers. Errors are of the fastest step or prompt, as the calibration takes the
fastest: other work on the machine only adds time. Nothing here is fitted to the shapes. Where the
memory of a shared host changes its speed, a calibration is of one speed and a figure of another:
bandwidth is read before and after the runs of each shape, and figures beside which it differed
from the calibration's are named.

    python benchmarks/sizing.py --json sizing.json
    taskset -c 0 python benchmarks/sizing.py --threads 1 --shapes qwen3-0.6b
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec

from penstock.bench.latency import LatencyWorkload, PhaseSteps, run_latency
from penstock.bench.machine import Speeds, describe_machine, measure_reading, measure_speeds
from penstock.bench.machine_calibration import calibrate
from penstock.bench.meter import MeteredExecutor, Step, StepProfile
from penstock.bench.session import Session
from penstock.cli.bench_common import machine_rows, print_table
from penstock.config import EngineConfig
from penstock.dtypes import QuantizationName
from penstock.hardware import detect
from penstock.interface.step import StepInput
from penstock.plan.costs import PlanCosts, StepSize
from penstock.sizing.accelerator import Accelerator, Rates
from penstock.sizing.machine_times import FittedTime, MachineTimes
from penstock.sizing.model import Precision, SizedModel
from penstock.sizing.roofline import PEAK, CostTable, Roofline
from penstock.sizing.step_time import StepTime
from penstock.threads import choose_threads
from penstock.weights.model_folder import load_model_spec
from penstock.written_file import write_json

CONFIGS = Path(__file__).parent / "configs"
SHAPES = ("qwen3-0.6b", "llama-3.2-1b", "llama-3.1-8b")
WEIGHTS: tuple[QuantizationName, ...] = ("int4", "int8", "none")
BATCHES = ((1, 512), (8, 64), (32, 64), (1, 2048))
"""Sequences and prompt tokens; of one sequence the prompt is reported, too."""
CACHED_TOKENS = 4096
"""As few as serve: a cache that has been touched by the warm-up run."""
LIMIT = 0.15
"""The error that is aimed at, and by how much memory may change its speed."""


class Line(msgspec.Struct, frozen=True):
    """One figure beside its predictions, in seconds."""

    shape: str
    weights: str
    what: str
    measured: float
    """The least."""
    median: float
    predicted: float
    roofline: float
    bandwidth: float
    """Bytes a second that were read before and after it, the more of the two."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    def beside(self, calibrated: float) -> bool:
        """Whether memory was as fast as for a calibration with so many bytes a second."""
        return abs(self.bandwidth / calibrated - 1) <= LIMIT


class SizeMeter(MeteredExecutor):
    """Keeps the size of every step."""

    def profiled(self, step: StepInput) -> StepProfile:
        return StepProfile(StepSize.of(step), [], 0.0)


@dataclass(frozen=True)
class Predictors:
    """What predicts the steps of one plan."""

    fitted: StepTime
    roofline: StepTime

    def line(self, shape: str, weights: str, what: str, runs: Sequence[Sequence[Step]]) -> Line:
        """The fastest run, and the median of all, beside what is predicted of the fastest."""
        run = min(runs, key=lambda steps: sum(step.seconds for step in steps))
        sizes = [step.run.profile.size for step in run if step.run and step.run.profile]
        return Line(
            shape,
            weights,
            what,
            sum(step.seconds for step in run),
            median(sum(step.seconds for step in steps) for steps in runs),
            sum(map(self.fitted.seconds, sizes)),
            sum(map(self.roofline.seconds, sizes)),
            bandwidth=0.0,
        )


def measured(
    shape: str,
    weights: QuantizationName,
    times: MachineTimes,
    device: Accelerator,
    threads: str | None,
    bandwidth: Callable[[], float],
) -> Sequence[Line]:
    """The figures of one shape in one type of weights."""
    before = bandwidth()
    lines = list(_lines(shape, weights, times, device, threads))
    read = max(before, bandwidth())
    return [msgspec.structs.replace(each, bandwidth=read) for each in lines]


def _lines(
    shape: str,
    weights: QuantizationName,
    times: MachineTimes,
    device: Accelerator,
    threads: str | None,
) -> Iterator[Line]:
    folder = CONFIGS / shape
    spec = load_model_spec(folder)
    sized = SizedModel(spec).plan("cpu", Precision(weights, spec.dtype), 512)
    predictors = _predictors(sized.costs, times, device)
    config = EngineConfig(
        model=str(folder),
        load_format="dummy",
        quantization=weights,
        backend="cpu",
        threads=_threads(threads),
        max_model_len=4096,
        kv_cache_bytes=sized.footprint.page_bytes * CACHED_TOKENS // 32,
        artifact=False,
    )
    with Session.open(config, SizeMeter) as session:
        for batch, prompt in BATCHES:
            workload = LatencyWorkload(
                batch_size=batch, input_len=prompt, output_len=12, repeats=4, warmup=1
            )
            phases = PhaseSteps()
            run_latency(session.core, session.meter, session.vocab_size, workload, phases)
            if batch == 1:
                yield predictors.line(shape, weights, f"prompt of {prompt:,}", phases.prefill)
            if prompt < 2048:
                steps = [[step] for step in phases.decode]
                yield predictors.line(shape, weights, f"decode, {batch}", steps)


def _predictors(costs: PlanCosts, times: MachineTimes, device: Accelerator) -> Predictors:
    roofline = Roofline.of(CostTable(costs), device, attained=PEAK)
    return Predictors(FittedTime(times, costs), roofline)


def _device(speeds: Speeds) -> Accelerator:
    """This machine as an entry of a catalogue."""

    floats = speeds.f32
    if speeds.read is None or floats is None:
        sys.exit(f"the machine cannot be measured: {speeds.unmeasured}")
    return Accelerator(
        name="this machine",
        kind="cpu",
        memory_gib=1.0,
        bandwidth_gb=speeds.read.rate / 1e9,
        tera=Rates(
            bf16=(speeds.bf16 or floats).rate / 1e12,
            f32=floats.rate / 1e12,
            int8=(speeds.int8 or floats).rate / 1e12,
        ),
    )


def _threads(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


def summary(lines: Sequence[Line]) -> str:
    errors = [abs(each.error) for each in lines]
    within = sum(error <= LIMIT for error in errors)
    return f"{within} of {len(errors)} within {LIMIT:.0%}; the median error is {median(errors):.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, choices=SHAPES)
    parser.add_argument("--weights", nargs="+", default=WEIGHTS, choices=WEIGHTS)
    parser.add_argument("--threads", metavar="N|LIST", help="default: the engine's")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    threads = choose_threads(_threads(args.threads), detect()).count
    speeds = measure_speeds(threads)
    times = calibrate(args.weights, EngineConfig(threads=_threads(args.threads)))
    print_table(machine_rows(describe_machine(speeds, threads)))
    calibrated = speeds.read.rate if speeds.read is not None else 0.0

    def read_bandwidth() -> float:
        return measure_reading(threads).rate

    print(
        "\n| shape | weights | | measured ms | median | predicted ms | error | roofline ms | GB/s |"
    )
    print("|---|---|---|---:|---:|---:|---:|---:|---:|")
    lines: list[Line] = []
    for shape in args.shapes:
        for weights in args.weights:
            device = _device(speeds)
            for each in measured(shape, weights, times, device, args.threads, read_bandwidth):
                lines.append(each)
                name = "bf16" if each.weights == "none" else each.weights
                print(
                    f"| {shape} | {name} | {each.what} | {each.measured * 1e3:,.2f} "
                    f"| {each.median * 1e3:,.2f} | {each.predicted * 1e3:,.2f} | {each.error:+.0%} "
                    f"| {each.roofline * 1e3:,.2f} | {each.bandwidth / 1e9:.0f} |",
                    flush=True,
                )
    print(f"\nall: {summary(lines)}")
    beside = [each for each in lines if each.beside(calibrated)]
    if beside and len(beside) < len(lines):
        print(
            f"those {len(beside)} beside which memory read within {LIMIT:.0%} of the calibration's "
            f"{calibrated / 1e9:.0f} GB/s: {summary(beside)}"
        )
    if args.json is not None:
        document = {
            "machine": msgspec.to_builtins(describe_machine(speeds, threads)),
            "times": msgspec.to_builtins(times),
            "lines": [msgspec.to_builtins(each) for each in lines],
        }
        write_json(args.json, document)


if __name__ == "__main__":
    main()
