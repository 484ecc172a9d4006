"""One engine in one precision, in process or served: loaded when it is needed, and kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from comparison.artifacts import Shape
from comparison.cap import Cap
from comparison.cases import Case
from comparison.environments import Environment
from comparison.peers import Peer, Precision
from comparison.process import Worker, WorkerError
from comparison.protocol import Load, Loaded, Message, Ran, Request, Run, Score, Scored
from comparison.text import Text

LOAD_SECONDS = 1200.0
GIGABYTE = 1 << 30


class LoadError(WorkerError):
    """The engine does not load this model: there is no case that it could run."""


@dataclass(frozen=True)
class Limits:
    """The same for every engine of a comparison."""

    processors: tuple[int, ...]
    """One logical processor of each physical core that is used."""
    max_sequences: int
    max_length: int
    kv_bytes: int
    clients: int
    run_seconds: float
    kv_bits: int = 16
    """Bits of keys and values, where an engine lets one choose."""
    cap: Cap | None = None


@dataclass
class Contender:
    """``failed`` names the cases that it failed, "" standing for all: they are not tried again."""

    peer: Peer
    precision: Precision
    served: bool
    shape: Shape
    limits: Limits
    worker: Worker | None = None
    loaded: Loaded | None = None
    """What it answered when it was last loaded."""
    warmed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        return f"{self.peer.name} {self.precision}{' over HTTP' if self.served else ''}"

    @property
    def expected_bytes(self) -> int:
        """A guess of its memory: weights, packed anew while they are read, and caches."""
        return (
            self.shape.artifact_bytes(self.peer, self.precision) * 3 // 2
            + 2 * self.limits.kv_bytes
            + GIGABYTE
        )

    @property
    def module(self) -> str:
        return (self.peer.server or "") if self.served else self.peer.worker

    def command(self) -> list[str]:
        python = Environment(self.peer, self.shape.work).python
        return [str(python), "-m", f"workers.{self.module}"]

    def takes(self, case: Case) -> bool:
        return self.served == case.over_http and not self.failed & {"", case.name}

    def run(self, case: Case, requests: Sequence[Request], warm: Sequence[Request]) -> Ran:
        """Run one case; ``warm`` goes before it once.

        Raises LoadError, or WorkerError where only this case fails.
        """
        worker = self._ready()
        if case.name not in self.warmed:
            self._ask(worker, Run(list(warm), case.clients))
            self.warmed.add(case.name)
        answer = self._ask(worker, Run(list(requests), case.clients))
        if not isinstance(answer, Ran):
            raise WorkerError(f"{self.name} answered a run with {answer.kind}")
        return answer

    def perplexity(self, text: Text) -> float:
        """Raises LoadError, or WorkerError where the engine does not tell."""
        answer = self._ask(self._ready(), Score(text.windows, text.first))
        if not isinstance(answer, Scored):
            raise WorkerError(f"{self.name} answered a text with {answer.kind}")
        return text.perplexity(answer.loss)

    def resume(self) -> Loaded:
        """Load it, or let it go on, for others than its worker to ask; raises LoadError."""
        self._ready().resume()
        assert self.loaded is not None
        return self.loaded

    def pause(self) -> None:
        if self.worker is not None:
            self.worker.pause()

    def unload(self) -> None:
        if self.worker is not None:
            self.worker.close()
            self.worker = None
            self.warmed.clear()

    @property
    def settings(self) -> dict[str, str]:
        return {} if self.loaded is None else self.loaded.settings

    def _ready(self) -> Worker:
        try:
            return self._loaded()
        except WorkerError as error:
            raise LoadError(str(error)) from None

    def _ask(self, worker: Worker, message: Message) -> Message:
        return worker.ask(message, self.limits.run_seconds)

    def _loaded(self) -> Worker:
        if self.worker is not None:
            return self.worker
        log = self.shape.work / "logs" / f"{self.module}-{self.shape.name}-{self.precision}.txt"
        environment = Environment(self.peer, self.shape.work)
        variables = environment.variables(self.limits.processors, self.limits.cap)
        self.worker = Worker(self.command(), log, variables)
        answer = self.worker.ask(
            Load(
                model=str(self.shape.artifact(self.peer, self.precision)),
                precision=self.precision,
                threads=len(self.limits.processors),
                max_sequences=self.limits.max_sequences,
                max_length=self.limits.max_length,
                kv_bytes=self.limits.kv_bytes,
                settings={
                    "clients": str(self.limits.clients),
                    "kv_bits": str(self.limits.kv_bits),
                },
            ),
            LOAD_SECONDS,
        )
        if not isinstance(answer, Loaded):
            raise WorkerError(f"{self.name} answered a load with {answer.kind}")
        cap = self.limits.cap
        if cap is not None and (excess := cap.excess(answer.settings.get("isa", ""))):
            raise WorkerError(f"it is not held to {cap.name}: {excess}")
        self.loaded = answer
        return self.worker


def make_room(
    contenders: Sequence[Contender],
    wanted: Contender,
    recent: Sequence[Contender],
    available: Callable[[], int] | None = None,
) -> None:
    """Unload those least recently run until ``wanted`` should fit; it may be loaded already.

    ``recent`` has the least recently run first. ``available`` tells the free bytes of memory.
    """
    free = available or available_bytes
    if wanted.worker is not None:
        return
    order = [c for c in recent if c is not wanted and c.worker is not None]
    order += [c for c in contenders if c.worker is not None and c not in order and c is not wanted]
    for contender in order:
        if free() >= wanted.expected_bytes:
            return
        contender.unload()


def available_bytes(path: Path = Path("/proc/meminfo")) -> int:
    for line in path.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
