"""Measures what ``benchmarks/simulate.py`` compares with: servers under parts of their capacity."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import msgspec

from penstock.bench.load.trace_files import TraceScale, read_trace
from penstock.bench.traces import read_lengths
from penstock.simulate.others import Others
from penstock.simulate.server_process import serving

CONTEXT = 2048
SLO = ("ttft:100ms", "e2el:2s")
TIMES = ("ttft", "itl", "e2el")


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


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement of one configuration at one load."""

    config: str
    load: float
    """As a part of the capacity."""
    repeat: int
    speed: str
    """How many times as fast as the trace."""
    requests: int
    figures: dict[str, float]
    """Seconds, and good answers a second."""
    others: float
    """Processors that other processes and the host took meanwhile."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured, which several calibrations can be compared with."""

    trace: str
    scale: float
    threads: str | None
    model: str
    capacity_per_s: float
    runs: list[Run]

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Measured:
        """Those of several files, whose runs are of the same loads, together."""
        first, *others = (msgspec.json.decode(path.read_bytes(), type=cls) for path in paths)
        runs = list(first.runs)
        for each in others:
            if (each.trace, each.scale, each.capacity_per_s) != (
                *(first.trace, first.scale),
                first.capacity_per_s,
            ):
                sys.exit("the measurements are of different loads: give each the same --capacity")
            runs += each.runs
        return msgspec.structs.replace(first, runs=runs)


class Bench:
    """Measures servers under parts of their capacity."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._args = args
        self._folder = folder
        lengths = read_lengths(args.trace)
        longest = max(each.prompt + each.output for each in lengths)
        self.scale = args.scale or round(min(1.0, 0.95 * CONTEXT / longest), 3)

    def measured(self) -> Measured:
        """All configurations are served at once, and loaded in turn, so that what drifts is in all
        of them alike: whoever is not asked takes nothing."""
        args, runs = self._args, []
        with ExitStack() as stack:
            urls = {config: stack.enter_context(self._served(config)) for config in args.configs}
            capacity = args.capacity or self._capacity(urls[args.configs[0]], args.configs[0])
            for repeat in range(args.repeats):
                for load in args.loads:
                    for config, url in urls.items():
                        runs.append(self._run(url, config, load, repeat, load * capacity))
        return Measured(
            trace=args.trace.name,
            scale=self.scale,
            threads=args.threads,
            model=args.model,
            capacity_per_s=capacity,
            runs=runs,
        )

    def _served(self, config: str) -> AbstractContextManager[str]:
        """A server of this configuration; gives its URL."""
        model = [self._args.model] if self._args.model else []
        return serving([*model, *words_of(config), *engine_words(self._args.threads)])

    def _capacity(self, url: str, config: str) -> float:
        """Requests a second that a server completes while all of its places are taken."""
        seqs = dict(zip(*[iter(words_of(config))] * 2, strict=True))["--max-num-seqs"]
        count = str(int(seqs) * 8)
        found = self._bench(url, "--arrivals", "at-once", "--concurrency", seqs, count=count)
        part = found["steady"] or found["whole"]
        return float(part["completed_per_s"])

    def _rate(self, count: int) -> float:
        """Requests a second of the first of the trace, at its own times."""
        recorded = read_trace(self._args.trace, TraceScale(), count).recorded
        last = max(each.at_s or 0.0 for each in recorded)
        return len(recorded) / last

    def _run(self, url: str, config: str, load: float, repeat: int, per_s: float) -> Run:
        """The first requests of the trace, so many a second."""
        count = max(int(per_s * self._args.seconds), 20)
        speed = str(round(per_s / self._rate(count), 4))
        before, begun = Others.now(), time.monotonic()
        whole = self._bench(url, "--speed", speed, "--slo", *SLO, count=str(count))["whole"]
        others = Others.now().since(before).each_second(time.monotonic() - begun)
        figures = {
            f"{name}.{part}": whole["distributions"][name]["summary"][part]
            for name in TIMES
            for part in ("p50", "p99")
        }
        figures["goodput"] = whole["goodput_per_s"]
        return Run(
            config=config,
            load=load,
            repeat=repeat,
            speed=speed,
            requests=count,
            figures=figures,
            others=sum(others),
        )

    def _bench(self, url: str, *words: str, count: str) -> dict[str, Any]:
        out = self._folder / "measured.json"
        penstock(
            *("bench", "serve", url, "--workload", str(self._args.trace), *words),
            *("--num-prompts", count, "--scale", str(self.scale), "--scrape", "0"),
            *("--json", str(out)),
        )
        run: dict[str, Any] = json.loads(out.read_text())["runs"][0]
        return run


def engine_words(threads: str | None) -> list[str]:
    """The options of the engine that all configurations have."""
    return [] if threads is None else ["--threads", threads]
