"""A recorded trace for minutes or hours, with faults: no byte may be wrong and nothing be left.

Every answer that is complete is compared with that of the same request when it was alone on the
server, and every one that is not with the beginning of it.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import IO, Any

import msgspec

from penstock.bench.processes import descriptors, resident_mib
from service.answers import Answer
from service.asking import Asked, Manner, ask
from service.faults import Faults
from service.process import Served, serving, until
from service.trace import Trace

ANSWER_S = 300.0
"""An answer that takes longer hangs, whatever else the machine does."""
MOST_OPEN = 256
FEW_OPEN, MANY_OPEN = 64, 128
"""Fewer open requests: they come faster; more: slower. So the engine always has a full batch."""
WARM_UP_S = 30.0
"""Seconds under load and without faults before memory is measured: caches and allocators have
filled."""
MEMORY_MIB = 32.0
"""MiB by which the memory of a process may differ from before. A leak of one kilobyte a request
would show after half an hour at 20 requests a second."""
CACHE_MIB = 48
"""Small: requests wait for blocks and lose them."""
LISTED = 20
MAX_NUM_SEQS = 64
_LIMIT = 20  # of files that may be open more than before: connections of clients that just left


class Options(msgspec.Struct, frozen=True):
    trace: str
    minutes: float
    references: int
    """Different requests."""
    threads: int
    seed: int = 0
    kill_every_s: float = 320.0


class Use(msgspec.Struct, frozen=True):
    """What the server's processes hold."""

    front_mib: float
    engine_mib: float
    front_files: int
    engine_files: int


class Sample(msgspec.Struct, frozen=True):
    seconds: float
    requests: int
    front_mib: float
    speed: float
    """Times as fast as the trace."""


class Soak(msgspec.Struct, frozen=True, kw_only=True):
    options: Options
    seconds: float
    requests: int
    requests_per_s: float
    """The highest rate that held: as many as kept the batch full."""
    output_tokens: int
    """Output tokens of answers that are complete."""
    outcomes: dict[str, int]
    compared: int
    """Complete answers, each equal to that of the same request alone."""
    wrong: int
    """Answers that differ, complete or as far as they came."""
    unexplained: int
    """Errors, broken connections and silences that no fault explains."""
    troubles: list[str]
    """The first of these, and what was left."""
    faults: dict[str, int]
    before: Use
    after: Use
    samples: list[Sample]
    ok: bool


class Run:
    """The state of one soak."""

    def __init__(self, served: Served, trace: Trace, options: Options) -> None:
        self.served = served
        self.trace = trace
        self.random = random.Random(options.seed)
        self.faults = Faults(served, self.random, options.kill_every_s)
        self.outcomes: Counter[str] = Counter()
        self.compared = self.wrong = self.unexplained = self.tokens = self.sent = 0
        self.troubles: list[str] = []
        self.speed = 1.0
        self.samples: list[Sample] = []
        self.expected: list[Answer] = []
        """The answer of each request when it was alone."""
        self._open: set[asyncio.Task[None]] = set()

    async def compute_alone(self) -> None:
        """The known-good answers, each when nothing else runs."""
        for number, body in enumerate(self.trace.bodies):
            asked = await asyncio.wait_for(ask(self.served.port, body), ANSWER_S)
            if asked.status != 200 or not asked.answer.done:
                raise RuntimeError(f"request {number} failed alone: {asked}")
            self.expected.append(asked.answer)

    async def load(self, seconds: float, manners: bool) -> None:
        """Requests as the trace has them, for so long; then wait for the last."""
        began = time.monotonic()
        next_at, next_look = began, began + 1.0
        number = 0
        while (now := time.monotonic()) < began + seconds:
            if now >= next_look:
                self._steer(now - began)
                next_look = now + 1.0
            if now < next_at or len(self._open) >= MOST_OPEN:
                await asyncio.sleep(min(0.2, max(0.002, next_at - now)))
                next_at = max(next_at, now - 1.0)  # what could not be sent is not caught up
                continue
            next_at += self.trace.gaps[number % len(self.trace.gaps)] / self.speed
            number += 1
            task = asyncio.ensure_future(self._one(self._manner() if manners else Manner()))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
        await asyncio.gather(*self._open)
        self.sent += number

    def note(self, trouble: str) -> None:
        if len(self.troubles) < LISTED:
            self.troubles.append(trouble)

    def _steer(self, seconds: float) -> None:
        if len(self._open) < FEW_OPEN and not self.faults.engine_out:
            self.speed *= 1.05
        elif len(self._open) > MANY_OPEN:
            self.speed *= 0.9
        if not self.samples or seconds - self.samples[-1].seconds >= 30:
            memory = resident_mib(self.served.pid)
            done = sum(self.outcomes.values())
            self.samples.append(Sample(round(seconds, 1), done, round(memory, 1), self.speed))
            print(f"  {seconds:.0f} s: {done} done, {len(self._open)} open", file=sys.stderr)

    def _manner(self) -> Manner:
        chance = self.random.random()
        if chance < 0.03:
            return Manner(leaves_after=0)
        if chance < 0.12:
            return Manner(leaves_after=self.random.randrange(1, 20))
        if chance < 0.15:
            return Manner(pause_s=self.random.uniform(0.01, 0.2))
        if chance < 0.18:
            return Manner(deadline_s=round(self.random.uniform(0.05, 2.0), 3))
        return Manner()

    async def _one(self, manner: Manner) -> None:
        which = self.random.randrange(len(self.trace.bodies))
        body: dict[str, Any] = dict(self.trace.bodies[which])
        if self.random.random() < 0.8 or manner.leaves_after:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        began = time.monotonic()
        try:
            asked = await asyncio.wait_for(ask(self.served.port, body, manner), ANSWER_S)
        except Exception as error:
            self._unexplained(f"request {which}, {manner}: {type(error).__name__}: {error}")
            return
        self.judge(which, manner, asked, began)

    def judge(self, which: int, manner: Manner, asked: Asked, began: float) -> None:
        """Compare the result of request ``which``, and look for what explains an error."""
        answer, expected = asked.answer, self.expected[which]
        if answer.done:
            self.outcomes["complete"] += 1
            if answer == expected:
                self.compared += 1
                self.tokens += answer.completion_tokens or 0
                return
        if not answer.begins(expected) or answer.done:
            self.wrong += 1
            self.note(f"request {which}, {manner}: {answer} is not {expected}"[:2000])
        if asked.left:
            self.outcomes["left"] += 1
        elif answer.error is not None:
            self.outcomes[answer.error] += 1
            due = answer.error == "deadline_exceeded" and manner.deadline_s is not None
            if not due and not self.faults.excuse(answer.error, began, time.monotonic()):
                self._unexplained(f"request {which}, {manner}: {asked.status} {answer.error}")
        elif not answer.done:
            self._unexplained(f"request {which}, {manner}: the stream ended early")

    def _unexplained(self, trouble: str) -> None:
        self.unexplained += 1
        self.note(trouble)


def use(served: Served) -> Use:
    front, engine = served.pid, served.engine_pid
    return Use(
        round(resident_mib(front), 1),
        round(resident_mib(engine), 1),
        descriptors(front),
        descriptors(engine),
    )


def settled(served: Served, run: Run) -> Use:
    """What is held once nothing runs; notes what should not be."""
    for condition, what in (
        (lambda: not served.metric("num_requests_running"), "the engine still runs requests"),
        (lambda: not served.metric("kv_cache_usage_perc"), "blocks are held by nobody"),
        (lambda: not served.status()["requests"], "requests are open"),
        (lambda: not served.status()["engine"]["open_sequences"], "sequences are open"),
    ):
        try:
            until(condition, 60.0, what)
        except RuntimeError as error:
            run.note(str(error))
    checked = served.post("/admin/check", {})
    if checked != {"ok": True}:
        run.note(f"check_integrity: {checked}")
    return use(served)


def measure(options: Options, trace_path: Path) -> Soak:
    """Raises RuntimeError if the server cannot be driven at all, and what Trace.read raises."""
    flags = [
        *("--threads", str(options.threads), "--max-num-seqs", str(MAX_NUM_SEQS)),
        *("--kv-cache-bytes", f"{CACHE_MIB}MiB", "--no-access-log"),
    ]
    with tempfile.TemporaryFile() as log, serving(flags, log) as served:
        return asyncio.run(_measure(served, options, trace_path, log))


async def _measure(served: Served, options: Options, path: Path, log: IO[bytes]) -> Soak:
    card = served.get("/v1/models")["data"][0]
    trace = Trace.read(path, options.references, served.model, card["max_model_len"], 4096)
    run = Run(served, trace, options)
    print(f"{len(trace.bodies)} requests alone", file=sys.stderr)
    await run.compute_alone()
    await run.load(WARM_UP_S, manners=False)
    before = settled(served, run)
    print("soaking", file=sys.stderr)
    began = time.monotonic()
    run.sent, run.samples = 0, []
    run.outcomes.clear()
    run.compared = run.tokens = 0
    injecting = asyncio.ensure_future(run.faults.run())
    loading = asyncio.ensure_future(run.load(options.minutes * 60, manners=True))
    await asyncio.wait({injecting, loading}, return_when=asyncio.FIRST_COMPLETED)
    if injecting.done():
        run.note(f"the faults ended: {injecting.exception()!r}")
    await loading
    seconds = time.monotonic() - began
    await run.faults.stop(injecting)
    after = settled(served, run)
    for name in ("front_mib", "engine_mib"):
        grown = getattr(after, name) - getattr(before, name)
        if grown > MEMORY_MIB:
            run.note(f"{name} has grown by {grown:.1f}")
    for name in ("front_files", "engine_files"):
        if getattr(after, name) > getattr(before, name) + _LIMIT:
            run.note(f"{name}: {getattr(after, name)}, before {getattr(before, name)}")
    log.seek(0)
    text = log.read().decode(errors="replace")
    if "Traceback" in text:
        run.note(f"the log has a traceback: {text[text.index('Traceback') :][:2000]}")
    return Soak(
        options=options,
        seconds=seconds,
        requests=run.sent,
        requests_per_s=run.sent / seconds,
        output_tokens=run.tokens,
        outcomes=dict(run.outcomes),
        compared=run.compared,
        wrong=run.wrong,
        unexplained=run.unexplained,
        troubles=run.troubles,
        faults=dict(run.faults.counts),
        before=before,
        after=after,
        samples=run.samples,
        ok=not run.troubles and not run.wrong and not run.unexplained and run.compared > 0,
    )
