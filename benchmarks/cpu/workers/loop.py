"""The worker's side of the protocol, the same for every engine. Standard library alone."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from comparison.protocol import (
    Failed,
    Load,
    Loaded,
    Quit,
    Ran,
    Request,
    Run,
    Score,
    Scored,
    decode,
    encode,
)


class TokenTimes:
    """When each token of each request came, in seconds from :meth:`start`."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.seconds: list[list[float]] = [[] for _ in requests]
        self._start = time.perf_counter()

    def start(self) -> None:
        """Time counts from here; what an engine prepares before it is not counted."""
        self._start = time.perf_counter()

    def add(self, request: int, tokens: int = 1) -> None:
        """``tokens`` of a request have just come."""
        now = time.perf_counter() - self._start
        self.seconds[request].extend([now] * tokens)


class Engine(Protocol):
    """What a worker module implements."""

    def load(self, options: Load) -> dict[str, str]:
        """Load the model; returns the settings that were chosen."""

    def run(self, requests: list[Request], clients: int | None, times: TokenTimes) -> None:
        """Generate greedily, ignoring end-of-sequence; tell ``times`` of every token."""

    def close(self) -> None:
        """Release what would outlive the process."""


@runtime_checkable
class Scorer(Protocol):
    """What a worker module implements besides whose engine gives log-probabilities of a prompt."""

    def score(self, windows: list[list[int]], first: int) -> float:
        """The loss that :class:`comparison.protocol.Scored` has."""


@runtime_checkable
class Listener(Protocol):
    """What a worker module implements besides whose engine is a server that others may ask, too."""

    def url(self) -> str:
        """Where it listens, once it is loaded."""

    def body(self) -> dict[str, Any]:
        """Fields that its requests need beside the common ones."""


def serve(engine: Engine) -> None:
    """Answer messages until Quit or the end of input.

    Standard output is moved aside first: libraries print, and the protocol has the pipe alone.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        for line in sys.stdin:
            message = decode(line)
            if isinstance(message, Quit):
                break
            try:
                answer = _answer(engine, message)
            except Exception as error:
                traceback.print_exc()
                answer = Failed(f"{type(error).__name__}: {error}"[:2000])
            answers.write(encode(answer))
    finally:
        engine.close()


def _answer(engine: Engine, message: object) -> Loaded | Ran | Scored | Failed:
    if isinstance(message, Load):
        start = time.perf_counter()
        settings = engine.load(message)
        seconds = time.perf_counter() - start
        if isinstance(engine, Listener):
            return Loaded(seconds, settings, engine.url(), engine.body())
        return Loaded(seconds, settings)
    if isinstance(message, Run):
        times = TokenTimes(message.requests)
        start, busy, cpu = time.perf_counter(), _busy_seconds(), _cpu_seconds()
        engine.run(message.requests, message.clients, times)
        cpu = _cpu_seconds() - cpu
        others = max(0.0, _busy_seconds() - busy - cpu)
        seconds = time.perf_counter() - start
        for i, request in enumerate(message.requests):
            came = len(times.seconds[i])
            if came != request.output:
                return Failed(f"request {i} was asked for {request.output} tokens and got {came}")
        return Ran(times.seconds, cpu, others, seconds)
    if isinstance(message, Score):
        if not isinstance(engine, Scorer):
            return Failed("it gives no log-probabilities of prompts here")
        return Scored(engine.score(message.windows, message.first))
    return Failed(f"a worker does not answer {type(message).__name__}")


def _busy_seconds() -> float:
    """Time since the machine's start in which its CPUs were not idle."""
    with open("/proc/stat", encoding="utf-8") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    user, nice, system, _idle, _waiting, interrupt, soft_interrupt, stolen = fields
    ticks = user + nice + system + interrupt + soft_interrupt + stolen
    return ticks / os.sysconf("SC_CLK_TCK")


def _cpu_seconds() -> float:
    """User and system time of this worker and of every process that its engine started."""
    leader, ticks = os.getsid(0), 0
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            if int(fields[3]) == leader:
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
