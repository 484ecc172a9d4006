"""Compare what ``penstock simulate`` predicts with what ``penstock serve`` does.

The model is calibrated once (``penstock calibrate``). Then all configurations are served, and
``penstock bench serve`` replays a trace at parts of the capacity, which is that of the first one
with as many requests open as it runs, in turn to each of them; the same command lines are
simulated. Lengths are shrunk so that the longest request fits into the context. Nothing is fitted
to the trace.

    python benchmarks/simulate.py --trace AzureLLMInferenceTrace_conv.csv --json simulate.json
    python benchmarks/simulate.py --trace other.jsonl --seconds 20 --loads 0.8

What is measured can be kept, and compared with several calibrations:

    python benchmarks/simulate.py --trace trace.csv --repeats 1 --capacity 87 --measure once.json
    python benchmarks/simulate.py --trace trace.csv --measured once.json --calibration here.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from simulate_measured import SLO, Bench, Measured, Run, engine_words, penstock

from penstock.simulate.server_rounds import MOST_OTHERS
from penstock.written_file import write_json

CONFIGS = (
    "wide:max_num_seqs=64,max_num_batched_tokens=512",
    "narrow:max_num_seqs=16,max_num_batched_tokens=128",
)
LIMITS = {"p50": 0.09, "p99": 0.15, "goodput": 0.15}
"""The errors that are aimed at."""


class Line(msgspec.Struct, frozen=True):
    """One figure of one configuration at one load; seconds, or requests a second."""

    config: str
    load: float
    """As a part of the capacity."""
    figure: str
    runs: list[float]
    """What each repetition of the measurement gave."""
    simulated: float

    @property
    def measured(self) -> float:
        """The mean."""
        return max(sum(self.runs) / len(self.runs), 1e-6)

    @property
    def error(self) -> float:
        return self.simulated / self.measured - 1

    @property
    def spread(self) -> float:
        """How far the measurements are from their mean, as a part of it: the mean of these."""
        return sum(abs(each / self.measured - 1) for each in self.runs) / len(self.runs)

    @property
    def kind(self) -> str:
        """What its limit is called."""
        return self.figure.rpartition(".")[2]

    @property
    def within(self) -> bool:
        return abs(self.error) <= LIMITS[self.kind]


class Ranking(msgspec.Struct, frozen=True):
    """Configurations at one load, those with the highest goodput first."""

    load: float
    measured: list[str]
    simulated: list[str]


class Comparison:
    """Simulates what was measured."""

    def __init__(self, trace: Path, measured: Measured, calibration: Path, folder: Path) -> None:
        self._trace = trace
        self._measured = measured
        self._calibration = calibration
        self._folder = folder
        self.runs: list[dict[str, Any]] = []
        self.left_out = 0
        """Runs that others disturbed, where one remains that they did not."""
        self.disturbed = 0
        """Configurations under a load all of whose runs others disturbed."""

    def lines(self) -> Iterator[Line]:
        """Both, figure by figure."""
        alike: dict[tuple[str, float], list[Run]] = {}
        for run in self._measured.runs:
            alike.setdefault((run.config, run.load), []).append(run)
        for (config, load), all_runs in alike.items():
            runs = [run for run in all_runs if run.others <= MOST_OTHERS] or all_runs
            self.left_out += len(all_runs) - len(runs)
            self.disturbed += runs[0].others > MOST_OTHERS
            simulated = self._simulated(config, runs[0])
            self.runs.append({"config": config, "load": load, "simulated": simulated})
            for figure in runs[0].figures:
                name, _, part = figure.partition(".")
                value = simulated["distributions"][name][part] if part else None
                yield Line(
                    config,
                    load,
                    figure,
                    [run.figures[figure] for run in runs],
                    simulated["goodput_per_s"] if value is None else value,
                )

    def _simulated(self, config: str, run: Run) -> dict[str, Any]:
        measured, out = self._measured, self._folder / "simulated.json"
        name = config if not measured.threads else f"{config},threads={measured.threads}"
        model = ["--model", measured.model] if measured.model else []
        penstock(
            *("simulate", str(self._trace), name, "--calibration", str(self._calibration)),
            *(*model, "--speed", run.speed, "--slo", *SLO, "--num-prompts", str(run.requests)),
            *("--scale", str(measured.scale), "--json", str(out)),
        )
        found: dict[str, Any] = json.loads(out.read_text())["runs"][0]
        return found


def table(lines: Sequence[Line]) -> Iterator[str]:
    yield "| configuration | load | figure | measured | simulated | error | |"
    yield "|---|---:|---|---:|---:|---:|---|"
    for each in lines:
        unit, factor = ("/s", 1.0) if each.kind == "goodput" else (" ms", 1e3)
        yield (
            f"| {each.config.partition(':')[0]} | {each.load:g} | {each.figure} "
            f"| {each.measured * factor:,.2f}{unit} ({min(each.runs) * factor:,.2f} to "
            f"{max(each.runs) * factor:,.2f}) | {each.simulated * factor:,.2f}{unit} "
            f"| {each.error:+.1%} | {'' if each.within else 'missed'} |"
        )


def summary(lines: Sequence[Line]) -> Iterator[str]:
    for kind, most in LIMITS.items():
        those = [each for each in lines if each.kind == kind]
        errors = [each.error for each in those]
        within = sum(abs(error) <= most for error in errors)
        yield (
            f"{kind}: {within} of {len(errors)} within {most:.0%}; mean absolute error "
            f"{fmean(map(abs, errors)):.1%}, mean signed error {fmean(errors):+.1%}; measurements "
            f"repeat within {fmean(each.spread for each in those):.1%} of their means"
        )


def rankings(lines: Sequence[Line]) -> list[Ranking]:
    found = []
    for load in dict.fromkeys(each.load for each in lines):
        good = [each for each in lines if each.figure == "goodput" and each.load == load]
        found.append(
            Ranking(
                load,
                [e.config for e in sorted(good, key=lambda each: -each.measured)],
                [e.config for e in sorted(good, key=lambda each: -each.simulated)],
            )
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--trace", type=Path, required=True, metavar="FILE")
    parser.add_argument("--model", default="", help="default: the demo model")
    parser.add_argument("--configs", nargs="+", default=CONFIGS, metavar="CONFIG")
    parser.add_argument("--loads", nargs="+", type=float, default=(0.5, 0.8, 1.1), metavar="PART")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run (default: 60)")
    parser.add_argument("--repeats", type=int, default=2, help="of each measurement (default: 2)")
    parser.add_argument("--scale", type=float, help="of lengths (default: so that all fit)")
    parser.add_argument("--threads", metavar="N|LIST", help="default: the engine's")
    parser.add_argument("--calibration", type=Path, metavar="FILE", help="default: made anew")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--capacity", type=float, help="requests/s (default: measured)")
    parser.add_argument("--measure", type=Path, metavar="FILE", help="only measure, and keep it")
    parser.add_argument(
        "--measured", type=Path, nargs="+", metavar="FILE", help="measure nothing, and take these"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-simulate-") as folder:
        if args.measure is not None:
            write_json(args.measure, Bench(args, Path(folder)).measured())
            return
        calibration = args.calibration or Path(folder) / "calibration.json"
        if args.calibration is None:
            model = [args.model] if args.model else []
            words = [*model, *engine_words(args.threads), "--out", str(calibration)]
            penstock("calibrate", *words)
        if args.measured is None:
            measured = Bench(args, Path(folder)).measured()
        else:
            measured = Measured.read(args.measured)
        comparison = Comparison(args.trace, measured, calibration, Path(folder))
        lines = sorted(comparison.lines(), key=lambda each: each.load)
        calibrated = json.loads(calibration.read_text())
    ranked = rankings(lines)
    print(
        f"lengths x {measured.scale:g}, capacity {measured.capacity_per_s:,.2f} requests/s; "
        f"{comparison.left_out} runs left out during which others had more than {MOST_OTHERS:g} "
        f"processors, and {comparison.disturbed} of {len(comparison.runs)} loads have no others\n"
    )
    print("\n".join(table(lines)))
    print()
    print("\n".join(summary(lines)))
    for each in ranked:
        same = "as measured" if each.measured == each.simulated else "NOT as measured"
        print(f"ranked at {each.load:g}: {same}")
    if args.json is not None:
        document = {
            "measured": measured,
            "lines": [
                msgspec.to_builtins(each) | {"measured": each.measured, "error": each.error}
                for each in lines
            ],
            "rankings": msgspec.to_builtins(ranked),
            "simulated": comparison.runs,
            "calibration": calibrated,
        }
        write_json(args.json, document)


if __name__ == "__main__":
    main()
