"""Documents of load tests that never were: answers whose times follow a formula."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from penstock.bench.load.client_load import ClientLoad
from penstock.bench.load.document import (
    VERSION,
    LoadedRun,
    LoadReport,
    ServerAbout,
    TextAbout,
    points_of,
)
from penstock.bench.load.figures import NAMES, figures, steady_part
from penstock.bench.load.load import Load
from penstock.bench.load.record import RequestRecord
from penstock.bench.load.scrape import ServerMetrics
from penstock.bench.plots.figure import Figure
from penstock.service_level import Limit

FOUR: Final = Load(None, 4)
MACHINE: Final[dict[str, Any]] = {
    "cpu_model": "Example CPU",
    "physical_cores": 4,
    "logical_cores": 8,
    "memory_bytes": 16 << 30,
    "load_average_1m": 0.5,
    "kernel": "6.1",
    "python": "3.11.7",
    "packages": {"penstock": "0.1.0", "numpy": "2.0.0"},
}


@dataclass(frozen=True)
class Speed:
    """How a server answers. Times in seconds; each is multiplied by noise."""

    first_s: float = 0.020
    per_prompt_token_s: float = 0.0004
    gap_s: float = 0.010
    per_position_s: float = 0.000002
    per_user: float = 0.08
    """What another open request adds, as a part."""
    noise: float = 0.1
    """The deviation of the logarithm."""


@dataclass(frozen=True)
class Drawn:
    """What was asked for."""

    loads: Sequence[Load] = (FOUR,)
    repeats: int = 1
    requests: int = 40
    inputs: Sequence[int] = (64, 128, 256, 512)
    outputs: Sequence[int] = (8, 16, 32)
    limits: Sequence[Limit] = ()
    speed: Speed = field(default_factory=Speed)
    patterns: bool = False
    seed: int = 0
    """What draws times of answers, and without ``lengths_seed`` lengths and arrivals, too."""
    lengths_seed: int | None = None
    model: str = "example-1b"
    metrics: str | None = "penstock"
    """Whose metrics the server has."""
    command: str = "penstock bench serve http://localhost:8000"


def answer(
    index: int, sent_s: float, gaps_us: list[int], prompt: int = 10, **more: object
) -> RequestRecord:
    """A whole answer."""
    fields: dict[str, object] = {
        "index": index,
        "conversation": str(index),
        "turn": 0,
        "scheduled_s": sent_s,
        "sent_s": sent_s,
        "end_s": sent_s + sum(gaps_us) / 1e6,
        "gaps_us": gaps_us,
        "input_tokens": prompt,
        "output_tokens": len(gaps_us),
        "input_tokens_asked": prompt,
        "output_tokens_asked": len(gaps_us),
    }
    return msgspec.convert(fields | more, RequestRecord)


def run_of(
    records: Sequence[RequestRecord],
    load: Load = FOUR,
    point: int = 0,
    repeat: int = 0,
    limits: Sequence[Limit] = (),
    metrics: ServerMetrics | None = None,
) -> LoadedRun:
    seconds = max((record.end_s for record in records), default=1.0)
    steady = steady_part(records)
    return LoadedRun(
        point=point,
        repeat=repeat,
        arrivals="poisson" if load.rate is not None else "closed-loop",
        rate=load.rate,
        concurrency=load.concurrency,
        text_seed=1,
        started="2026-01-02T03:04:05+00:00",
        seconds=seconds,
        partial=False,
        skipped_turns=0,
        whole=figures(records, limits, 0.0, seconds),
        steady=None if steady is None else figures(records, limits, *steady),
        client=ClientLoad(
            loop_lag_p50_s=1e-5, loop_lag_p99_s=1e-4, loop_lag_max_s=1e-3, cpu_s=0.1, rss_bytes=1
        ),
        server_metrics=metrics,
        energy_j=None,
        requests=list(records),
    )


def report_of(
    runs: Sequence[LoadedRun], limits: Sequence[Limit] = (), model: str = "example-1b", **more: Any
) -> LoadReport:
    fields: dict[str, Any] = {
        "version": VERSION,
        "benchmark": "serve",
        "finished": "2026-01-02T03:05:05+00:00",
        "command": "penstock bench serve http://localhost:8000",
        "partial": False,
        "server": ServerAbout(
            url="http://localhost:8000",
            endpoint="chat",
            model=model,
            models=[model],
            max_model_len=4096,
            owned_by="penstock",
            round_trip_s=0.0001,
            tells_usage=True,
            ignores_eos=True,
        ),
        "text": TextAbout(known_by="/tokenize", tokens_per_word=1.0, exact=True),
        "workload": {"name": "random", "input_len": "64..512", "output_len": "8..32", "seed": 0},
        "slo": list(limits),
        "names": {name: dict(other) for name, other in NAMES.items()},
        "machine": MACHINE,
        "runs": list(runs),
        "points": points_of(runs),
        "search": None,
    }
    return LoadReport(**(fields | more))


@functools.cache
def drawn_report(test: Drawn) -> LoadReport:
    """A report of answers that are drawn: the same for the same ``test``, and not to be changed."""
    generator = np.random.default_rng(test.seed)
    runs = [
        _run(test, load, point, repeat, generator)
        for repeat in range(test.repeats)
        for point, load in enumerate(test.loads)
    ]
    return report_of(runs, test.limits, test.model, command=test.command)


def _run(
    test: Drawn, load: Load, point: int, repeat: int, generator: np.random.Generator
) -> LoadedRun:
    users = load.concurrency or max(1, round(load.rate or 1))
    free = [0.0] * users
    records, at = [], 0.0
    seed = test.lengths_seed
    lengths = generator if seed is None else np.random.default_rng([seed, point])
    for index in range(test.requests):
        if load.rate is not None:
            at += lengths.exponential(1 / load.rate)
        slot = int(np.argmin(free))
        begin = max(free[slot], at)
        scheduled = at if load.rate is not None else begin
        prompt, output = (int(lengths.choice(each)) for each in (test.inputs, test.outputs))
        gaps = _gaps(test.speed, prompt, output, users, generator)
        gaps[0] += round((begin - scheduled) * 1e6)
        sizes = f"{'long' if prompt >= max(test.inputs) else 'short'}-in-"
        sizes += f"{'long' if output >= max(test.outputs) else 'short'}-out"
        pattern = sizes if test.patterns else None
        records.append(answer(index, scheduled, gaps, prompt, pattern=pattern))
        free[slot] = records[-1].end_s
    end = max(record.end_s for record in records)
    metrics = None if test.metrics is None else _metrics(test.metrics, records, end, users)
    return run_of(records, load, point, repeat, test.limits, metrics)


def _gaps(
    speed: Speed, prompt: int, output: int, users: int, generator: np.random.Generator
) -> list[int]:
    slower = 1 + speed.per_user * (users - 1)
    first = (speed.first_s + speed.per_prompt_token_s * prompt) * slower
    later = (speed.gap_s + speed.per_position_s * (prompt + np.arange(1, output))) * slower
    times = np.array([first, *later]) * np.exp(generator.normal(0, speed.noise, output))
    return [round(time * 1e6) for time in times]


def _metrics(
    server: str, records: Sequence[RequestRecord], end: float, users: int
) -> ServerMetrics:
    times = np.linspace(0, end, 60)
    begun = [(np.array([r.sent_s for r in records]) <= t).sum() for t in times]
    done = [(np.array([r.end_s for r in records]) <= t).sum() for t in times]
    held = [float(b - d) for b, d in zip(begun, done, strict=True)]
    label = '{model_name="m"}'
    names = {
        "penstock": ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
        "vllm": ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
        "sglang": ("num_running_reqs", "num_queue_reqs", "token_usage"),
        "llamacpp": ("requests_processing", "requests_deferred", "kv_cache_usage_ratio"),
    }[server]
    running, waiting, used = (f"{server}:{name}{label}" for name in names)
    return ServerMetrics(
        times_s=times.tolist(),
        varying={
            running: [min(each, float(users)) for each in held],
            waiting: [max(0.0, each - users) for each in held],
            used: [0.02 * min(each, float(users)) for each in held],
        },
        constant={},
        failed=0,
    )


def rows(figure: Figure, panel: int = 0) -> list[list[dict[str, Any]]]:
    """The rows of each layer of a panel."""

    def inside(spec: Any) -> Iterator[list[dict[str, Any]]]:
        if "data" in spec:
            yield spec["data"]["values"]
        for layer in spec.get("layer", ()):
            yield from inside(layer)

    return list(inside(figure.panels[panel].spec))
