"""What is measured, by which jobs, each in a process of its own.

A process of its own gives each job all of the GPU's memory, a time limit, and an end that no other
job notices, whatever becomes of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.bench.redact import without_folders
from penstock.errors import ConfigError

MEASURES = (
    *("ceilings", "decode", "ops", "prefill", "quantized", "blocks", "host", "chunk", "itl"),
    *("deterministic", "experts", "latents", "ready", "mixed", "checks"),
)
"""The measures in the order in which they are taken: what says most comes first, since time may
end."""

EXPERTS = "moe-5b-a1b"
"""The shape of configs/ that is measured beside the run's own: a mixture of experts."""
LATENTS = "youtu-llm-2b"
"""Another, with attention over latents."""


@dataclass(frozen=True)
class Job:
    """One process. An engine takes ``measures``, decode and ops at ``batches``."""

    name: str
    kind: str  # compile, ceilings, blocks, engine, peer or checks
    measures: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    engine: dict[str, Any] = field(default_factory=dict)
    """Fields of EngineConfig that differ from those of all engines; ``model`` names another shape
    of configs/."""
    engines: list[dict[str, Any]] = field(default_factory=list)
    """Options of each engine to compile for; only a job that compiles has any."""


def select(only: str | None) -> tuple[str, ...]:
    """Measures of a list separated by commas, in their order; all for None.

    Raises ConfigError for a name that is none of MEASURES.
    """
    if only is None:
        return MEASURES
    names = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in names if name not in MEASURES]
    if unknown or not names:
        what = ", ".join(map(repr, unknown)) or "an empty list"
        raise ConfigError(f"--only takes {', '.join(MEASURES)}, not {what}")
    return tuple(name for name in MEASURES if name in names)


def plan_jobs(measures: Collection[str]) -> list[Job]:
    """The jobs that ``measures`` take, those that others' figures need among them."""
    jobs: list[Job] = []
    rates = {"ceilings", "decode", "prefill", "blocks", "itl", "experts", "latents"}
    if rates & set(measures):
        jobs.append(Job("ceilings", "ceilings"))
    alone = ("prefill", "host", "chunk", "itl", "ops", "mixed")
    taken = {name for name in alone if name in measures}
    batches: set[int] = {1, 64} if {"decode", "deterministic", "ops"} & set(measures) else set()
    if "quantized" in measures:
        batches.add(1)
    if {"decode", "quantized", "deterministic"} & set(measures):
        taken.add("decode")
    if "deterministic" in measures:
        taken.add("prefill")
    if taken or "ready" in measures:
        jobs.append(Job("bf16", "engine", _ordered(taken), tuple(sorted(batches))))
    if "quantized" in measures:
        steps = ("ops",) if "ops" in measures else ()
        for name in ("int8", "int4"):
            jobs.append(Job(name, "engine", ("decode", *steps), (1,), {"quantization": name}))
    if "blocks" in measures:
        jobs.append(Job("blocks", "blocks"))
    if "deterministic" in measures:
        changes = {"deterministic": False}
        jobs.append(Job("cublas", "engine", ("decode", "prefill"), (1, 64), changes))
    if "experts" in measures:
        taken = {"decode", "prefill"} | ({"ops"} & set(measures))
        jobs.append(Job("experts", "engine", _ordered(taken), (1, 16, 64), {"model": EXPERTS}))
        int4 = {"model": EXPERTS, "quantization": "int4"}
        jobs.append(Job("experts_int4", "engine", ("decode",), (1, 16), int4))
    if "latents" in measures:
        taken = {"decode", "prefill"} | ({"ops"} & set(measures))
        jobs.append(Job("latents", "engine", _ordered(taken), (1, 64), {"model": LATENTS}))
    if "ready" in measures:
        jobs.append(Job("again", "engine"))
    if "mixed" in measures:
        jobs += [Job("generate", "peer"), Job("generate_batch", "peer")]
    engines: list[dict[str, Any]] = []
    for job in jobs:
        if job.kind == "engine" and job.engine not in engines:
            engines.append(job.engine)
    if engines:
        at = next(i for i, job in enumerate(jobs) if job.kind == "engine")
        jobs.insert(at, Job("compile", "compile", engines=engines))
    if "checks" in measures:
        jobs.append(Job("checks", "checks"))
    return jobs


def _ordered(names: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in MEASURES if name in names)


Launch = Callable[[Job, float], bytes]
"""Runs a job for so many seconds at most; its result as JSON. Raises RuntimeError with the reason
where there is none."""


def run_jobs(
    jobs: Sequence[Job],
    launch: Launch,
    seconds: float,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Results by job, and why others have none. Jobs that would begin after ``seconds`` do not."""
    end = clock() + seconds
    results: dict[str, bytes] = {}
    problems: dict[str, str] = {}
    for job in jobs:
        left = end - clock()
        if left <= 0:
            problems[job.name] = f"not run: the {seconds / 60:g} minutes were over"
        else:
            say(f"{job.name} ...")
            start = clock()
            try:
                results[job.name] = launch(job, left)
            except RuntimeError as error:
                problems[job.name] = without_folders(str(error))
            else:
                say(f"{job.name}: {clock() - start:.0f} s")
        if job.name in problems:
            say(f"{job.name}: {problems[job.name]}")
    return results, problems


def in_process(
    command: Sequence[str],
    output: Path,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> bytes:
    """Run a worker that writes ``output``; what it says goes to the terminal, errors are kept.

    A worker may write all that it has measured so far, each time; where it takes too long, that is
    the result. Raises RuntimeError where it fails, with its last line, and where it takes too long
    and has written nothing.
    """
    # In a session of its own, so that whatever it started ends with it.
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=None if environment is None else {**os.environ, **environment},
    ) as worker:
        try:
            _, errors = worker.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            if not output.exists():
                raise RuntimeError(f"ended after {timeout_s:.0f} s: the time was over") from None
            return output.read_bytes()  # as far as it came
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
    if worker.returncode != 0 or not output.exists():
        sys.stderr.write(errors)
        lines = [line for line in errors.splitlines() if line.strip()]
        said = lines[-1] if lines else "it said nothing"
        raise RuntimeError(f"ended with {worker.returncode}: {said}")
    return output.read_bytes()
