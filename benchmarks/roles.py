"""Compare one engine with a prefill and a decode engine, measured and as simulated.

A trace of long prompts and long answers is drawn and offered to each configuration in turn, in
several rounds, with as many cores: one engine has two threads, and of two engines each has one, and
a core of its own. ``penstock simulate`` predicts the same trace from calibrations of this machine,
each of which takes many minutes.

    python benchmarks/roles.py MODEL --work FOLDER --rounds 3
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
import numpy as np

from penstock.simulate.server_process import serving

CORES: Final = (0, 1)
SMALL_STEP: Final = 64
FIGURES: Final = (
    ("between tokens, p50", "itl", "p50"),
    ("p99", "itl", "p99"),
    ("first token, p50", "ttft", "p50"),
    ("p99", "ttft", "p99"),
    ("whole answer, p50", "e2el", "p50"),
)
"""A column's name, and which figure of which distribution it has."""


class Configuration(msgspec.Struct, frozen=True):
    """Ways to serve the model by two cores."""

    name: str
    apart: bool
    step_tokens: int | None
    simulated: str
    """What ``penstock simulate`` calls it."""


CONFIGURATIONS: Final = (
    Configuration("one engine, default steps", False, None, "one:threads=2"),
    Configuration(
        f"one engine, steps of {SMALL_STEP} tokens",
        False,
        SMALL_STEP,
        f"small:threads=2,max_num_batched_tokens={SMALL_STEP}",
    ),
    Configuration("apart", True, None, "apart:prefill=1,threads=1"),
)


def write_trace(path: Path, requests: int, rate: float, seed: int) -> None:
    """Prompts of about 1,060 tokens and answers of 200, at times of a Poisson process."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate, requests))
    prompts = rng.integers(960, 1160, requests)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type"]
        )
        for at_s, prompt in zip(times.round(3).tolist(), prompts.tolist(), strict=True):
            table.writerow([at_s, "drawn", prompt, 200, prompt + 200, "API log"])


def penstock(*words: str) -> None:
    command = [sys.executable, "-m", "penstock", *words]
    if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
        sys.exit(f"failed: {' '.join(command)}")


@contextmanager
def on_cores(*cores: int) -> Iterator[None]:
    """Processes that are started within run on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def served(stack: ExitStack, model: str, configuration: Configuration, port: int) -> str:
    """Start a configuration's servers; the URL that is asked."""
    words = [model, "--max-model-len", "2048"]
    if configuration.step_tokens is not None:
        words += ["--max-num-batched-tokens", str(configuration.step_tokens)]
    if not configuration.apart:
        with on_cores(*CORES):
            return stack.enter_context(serving([*words, "--threads", "2"]))
    words += ["--threads", "1"]
    peer = f"127.0.0.1:{port}"
    with on_cores(CORES[0]):
        stack.enter_context(serving([*words, "--role", "prefill", "--handover-listen", peer]))
    with on_cores(CORES[1]):
        return stack.enter_context(serving([*words, "--role", "decode", "--prefill", peer]))


def measured(url: str, trace: Path, out: Path) -> dict[str, Any]:
    workload = ["--workload", str(trace), "--scrape", "0"]
    penstock("bench", "serve", url, *workload, "--json", str(out))
    run: dict[str, Any] = json.loads(out.read_text())["runs"][0]["whole"]
    return run


def simulated(model: str, trace: Path, work: Path, name: str) -> dict[str, Any]:
    out = work / "simulated.json"
    calibrations = [
        word for file in ("one", "apart") for word in ("--calibration", str(work / f"{file}.json"))
    ]
    penstock("simulate", str(trace), name, "--model", model, *calibrations, "--json", str(out))
    run: dict[str, Any] = json.loads(out.read_text())["runs"][0]
    return run


def calibrate(model: str, work: Path) -> None:
    for name, words in (("one", ["2"]), ("apart", ["1", "--neighbours", "1"])):
        if not (out := work / f"{name}.json").exists():
            penstock("calibrate", model, "--threads", *words, "--out", str(out))


def value(run: dict[str, Any], distribution: str, part: str) -> float:
    found = run["distributions"][distribution]
    return float(found.get("summary", found)[part])


def line(name: str, runs: Sequence[dict[str, Any]]) -> str:
    """A row of the table: medians of the runs, with the lowest and the highest."""
    cells = [name]
    for _, distribution, part in FIGURES:
        values = [1e3 * value(run, distribution, part) for run in runs]
        spread = f" ({min(values):,.0f} to {max(values):,.0f})" if len(values) > 1 else ""
        cells.append(f"{median(values):,.1f} ms{spread}")
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is measured")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--rate", type=float, default=0.5, help="requests a second")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--port", type=int, default=8100, help="of the prefill engine")
    parser.add_argument(
        "--measure-only", action="store_true", help="calibrate and simulate nothing"
    )
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    trace = args.work / "trace.csv"
    write_trace(trace, args.requests, args.rate, args.seed)
    if not args.measure_only:
        calibrate(args.model, args.work)
    runs: dict[str, list[dict[str, Any]]] = {each.name: [] for each in CONFIGURATIONS}
    with ExitStack() as stack:
        urls = {each.name: served(stack, args.model, each, args.port) for each in CONFIGURATIONS}
        for _ in range(args.rounds):
            for name, url in urls.items():
                runs[name].append(measured(url, trace, args.work / "measured.json"))
    (args.work / "runs.json").write_text(json.dumps(runs))
    print("| | " + " | ".join(name for name, *_ in FIGURES) + " |")
    print("|---" * (len(FIGURES) + 1) + "|")
    for each in CONFIGURATIONS:
        print(line(each.name, runs[each.name]))
        if args.measure_only:
            continue
        print(line("simulated", [simulated(args.model, trace, args.work, each.simulated)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
