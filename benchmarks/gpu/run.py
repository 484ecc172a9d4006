"""All jobs of a run one after the other, and what is written and said of them."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import msgspec

from gpu.device import Device, Reading
from gpu.figures import figures
from gpu.goals import Figure, shown, shown_goal
from gpu.jobs import Job, in_process, plan_jobs, run_jobs
from gpu.report import Document, to_json, to_markdown
from gpu.results import Results
from gpu.worker import Order
from gpu.workload import Size


@dataclass(frozen=True)
class Run:
    """What was asked for."""

    measures: tuple[str, ...]
    size: Size
    model: Path
    stories: Path | None
    seconds: float  # after which no job begins, and the one that runs is ended
    command: str
    dry: bool = False
    """Whether it runs a tiny model on the CPU: that shows that everything runs, and measures
    nothing."""


@dataclass(frozen=True)
class Places:
    """Files of a source tree."""

    root: Path
    script: Path  # started with --worker for each job
    results: Path  # a folder, made where it is missing


class Readings(Protocol):
    """What a monitor has read when its block has ended."""

    @property
    def readings(self) -> dict[str, Reading]: ...


Monitoring = Callable[[], AbstractContextManager[Readings]]
Worker = Callable[[Order, float], bytes]
"""Carries out an order within so many seconds; raises RuntimeError with the reason if not."""


def run(
    asked: Run, device: Device, places: Places, monitoring: Monitoring, worker: Worker | None = None
) -> int:
    """Measure, write both files, say the figures; 1 where a goal is missed or a job failed."""
    during: dict[str, dict[str, Reading]] = {}
    started = worker or worker_process(places.script)
    print(f"{device.name}, the shape of {asked.model.name}", flush=True)
    with tempfile.TemporaryDirectory() as folder:

        def launch(job: Job, seconds: float) -> bytes:
            order = Order(
                job=job,
                size=asked.size,
                model=str(asked.model),
                stories=None if asked.stories is None else str(asked.stories.resolve()),
                root=str(places.root),
                report=str(Path(folder) / "tests.xml"),
                started=time.time(),
                seconds=seconds,
                dry=asked.dry,
            )
            with monitoring() as monitor:
                result = started(order, seconds)
            during[job.name] = monitor.readings
            return result

        encoded, problems = run_jobs(plan_jobs(asked.measures), launch, asked.seconds, say)
    parts = {name: msgspec.json.decode(data) for name, data in encoded.items()}
    results = msgspec.convert({**parts, "problems": problems}, Results)
    document = Document(
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        command=asked.command,
        shape=asked.model.name,
        measures=list(asked.measures),
        device=device,
        during=during,
        figures=figures(results, asked.measures),
        results=results,
    )
    places.results.mkdir(parents=True, exist_ok=True)
    for ending, data in ((".json", to_json(document)), (".md", to_markdown(document).encode())):
        (places.results / (document.name + ending)).write_bytes(data)
    for line in summary(document.figures):
        say(line)
    say(f"written: {places.results.name}/{document.name}.json and .md")
    good = all(figure.verdict in ("met", "no goal") for figure in document.figures)
    return 0 if good and not problems else 1


def summary(figures: list[Figure]) -> list[str]:
    """A line for each figure: what it is, its goal, its result."""
    width = max((len(figure.name) for figure in figures), default=0)
    return [
        f"{figure.name:<{width}}  {shown(figure.value, figure.unit):>9}  "
        f"{shown_goal(figure):<10} {figure.verdict}"
        for figure in figures
    ]


def say(text: str) -> None:
    print(text, flush=True)


def worker_process(script: Path) -> Worker:
    """Workers in processes of their own."""

    def work(order: Order, seconds: float) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            asked, output = Path(folder) / "order.json", Path(folder) / "result.json"
            asked.write_bytes(order.encode())
            command = [sys.executable, str(script), "--worker", str(asked), str(output)]
            interpreted = "1" if order.dry and order.job.kind != "compile" else "0"
            return in_process(command, output, seconds, {"TRITON_INTERPRET": interpreted})

    return work
