"""Compare what ``penstock simulate`` predicts with what ``penstock serve`` does.

The model is calibrated once (``penstock calibrate``). Then each configuration is served, its
capacity is that of the first one with as many requests open as it runs, and ``penstock bench
serve`` replays a trace at parts of it; the same command line is simulated. Lengths are shrunk so
that the longest request fits into the context. Nothing is fitted to the trace.

    python benchmarks/simulate.py --trace AzureLLMInferenceTrace_conv.csv --json simulate.json
    python benchmarks/simulate.py --trace other.jsonl --seconds 20 --loads 0.8
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec

from penstock.bench.load.trace_files import TraceScale, read_trace
from penstock.bench.traces import read_lengths
from penstock.simulate.server_process import serving
from penstock.written_file import write_json

CONFIGS = (
    "wide:max_num_seqs=64,max_num_batched_tokens=512",
    "narrow:max_num_seqs=16,max_num_batched_tokens=128",
)
CONTEXT = 2048
SLO = ("ttft:100ms", "e2el:2s")
TIMES = ("ttft", "itl", "e2el")
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


def penstock(*words: str) -> None:
    """Run a command; what it prints is for the reader of its errors alone."""
    command = [sys.executable, "-m", "penstock", *words]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, text=True)
    if done.returncode:
        sys.exit(f"failed: {' '.join(command)}")


def words_of(config: str) -> list[str]:
    """The words of ``penstock serve`` for a configuration."""
    options = config.partition(":")[2].split(",")
    return [w for each in options for w in ("--" + each.replace("_", "-")).split("=", 1)]


class Comparison:
    """Measures and simulates, and keeps all that comes of it."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._args = args
        self._folder = folder
        self.calibration = folder / "calibration.json"
        lengths = read_lengths(args.trace)
        longest = max(each.prompt + each.output for each in lengths)
        self.scale = args.scale or round(min(1.0, 0.95 * CONTEXT / longest), 3)
        self.runs: list[dict[str, Any]] = []

    def calibrate(self) -> None:
        model = [self._args.model] if self._args.model else []
        penstock("calibrate", *model, *self._engine, "--out", str(self.calibration))

    @property
    def _engine(self) -> list[str]:
        threads = self._args.threads
        return [] if threads is None else ["--threads", threads]

    def served(self, config: str) -> AbstractContextManager[str]:
        """A server of this configuration; gives its URL."""
        model = [self._args.model] if self._args.model else []
        return serving([*model, *words_of(config), *self._engine])

    def capacity(self, url: str, config: str) -> float:
        """Requests a second that a server completes while all of its places are taken."""
        seqs = dict(zip(*[iter(words_of(config))] * 2, strict=True))["--max-num-seqs"]
        count = str(int(seqs) * 8)
        found = self._bench(url, "--arrivals", "at-once", "--concurrency", seqs, count=count)
        part = found["steady"] or found["whole"]
        return float(part["completed_per_s"])

    def rate(self, count: int) -> float:
        """Requests a second of the first of the trace, at its own times."""
        recorded = read_trace(self._args.trace, TraceScale(), count).recorded
        last = max(each.at_s or 0.0 for each in recorded)
        return len(recorded) / last

    def compare(self, url: str, config: str, load: float, per_s: float) -> list[Line]:
        """Both, of the first requests of the trace, so many a second."""
        count = max(int(per_s * self._args.seconds), 20)
        speed = str(round(per_s / self.rate(count), 4))
        slo = ["--slo", *SLO]
        measured = [
            self._bench(url, "--speed", speed, *slo, count=str(count))
            for _ in range(self._args.repeats)
        ]
        out = self._folder / "simulated.json"
        names = [config if not self._args.threads else f"{config},threads={self._args.threads}"]
        model = ["--model", self._args.model] if self._args.model else []
        penstock(
            *("simulate", str(self._args.trace), *names, "--calibration", str(self.calibration)),
            *(*model, "--speed", speed, *slo, "--num-prompts", str(count)),
            *("--scale", str(self.scale), "--json", str(out)),
        )
        simulated = json.loads(out.read_text())["runs"][0]
        self.runs.append({"config": config, "load": load, "simulated": simulated})
        lines = []
        for name in TIMES:
            for part in ("p50", "p99"):
                seen = [run["whole"]["distributions"][name]["summary"][part] for run in measured]
                found = simulated["distributions"][name][part]
                lines.append(Line(config, load, f"{name}.{part}", seen, found))
        good = [run["whole"]["goodput_per_s"] for run in measured]
        lines.append(Line(config, load, "goodput", good, simulated["goodput_per_s"]))
        return lines

    def _bench(self, url: str, *words: str, count: str) -> dict[str, Any]:
        out = self._folder / "measured.json"
        penstock(
            *("bench", "serve", url, "--workload", str(self._args.trace), *words),
            *("--num-prompts", count, "--scale", str(self.scale), "--scrape", "0"),
            *("--json", str(out)),
        )
        run: dict[str, Any] = json.loads(out.read_text())["runs"][0]
        return run


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
        errors = [each.error for each in lines if each.kind == kind]
        within = sum(abs(error) <= most for error in errors)
        mean = sum(map(abs, errors)) / len(errors)
        yield (
            f"{kind}: {within} of {len(errors)} within {most:.0%}; mean absolute error {mean:.1%}, "
            f"mean signed error {sum(errors) / len(errors):+.1%}"
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
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-simulate-") as folder:
        comparison = Comparison(args, Path(folder))
        if args.calibration is not None:
            comparison.calibration = args.calibration
        else:
            comparison.calibrate()
        lines: list[Line] = []
        capacity: float | None = None
        for config in args.configs:
            with comparison.served(config) as url:
                capacity = capacity or comparison.capacity(url, config)
                for load in args.loads:
                    lines += comparison.compare(url, config, load, load * capacity)
        calibration = json.loads(comparison.calibration.read_text())
    lines.sort(key=lambda each: each.load)
    ranked = rankings(lines)
    print(f"lengths x {comparison.scale:g}, capacity {capacity:,.2f} requests/s\n")
    print("\n".join(table(lines)))
    print()
    print("\n".join(summary(lines)))
    for each in ranked:
        same = "as measured" if each.measured == each.simulated else "NOT as measured"
        print(f"ranked at {each.load:g}: {same}")
    if args.json is not None:
        document = {
            "scale": comparison.scale,
            "capacity_per_s": capacity,
            "lines": [
                msgspec.to_builtins(each) | {"measured": each.measured, "error": each.error}
                for each in lines
            ],
            "rankings": msgspec.to_builtins(ranked),
            "simulated": comparison.runs,
            "calibration": calibration,
        }
        write_json(args.json, document)


if __name__ == "__main__":
    main()
