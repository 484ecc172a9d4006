"""An engine core that notes what it does: the times and sizes of its steps, and its requests.

It runs in the engine's own process, beside the server and its clients, so its steps take what
steps take there. :func:`load` is a loader of cores (``penstock.engine.ipc.core_loader``). The notes
are kept in memory, as bytes, and written when the engine ends, to the file that the environment
names.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, Final

from penstock.cache.changes import CacheChanges
from penstock.config import EngineConfig
from penstock.engine.ipc.core_loader import LoadedCore, Startup, load_core_around
from penstock.engine.stepped import Core
from penstock.errors import ConfigError
from penstock.interface.blocks import BlockIO, BlockMover
from penstock.interface.executor import Executor, Pending, Sampling, StepOutcome
from penstock.interface.messages import EngineRequest, EngineStats, SequenceUpdate
from penstock.interface.sampler import Sampler
from penstock.interface.step import StepInput
from penstock.interface.tuning import Tunable
from penstock.interface.weights import PackedRegions
from penstock.simulate.engine_log import EngineLog, write_log

CORE: Final = "penstock.simulate.recorded_core:load"
"""The name of this loader."""
LOG_VARIABLE: Final = "PENSTOCK_ENGINE_LOG"
"""The environment variable that names the file."""


class Notes:
    """What was noted so far."""

    def __init__(self) -> None:
        self.step_times = array("d")  # begin and end of each step
        self.step_counts = array("i")  # sequences and rows with logits of each
        self.lengths = bytearray()  # int32: of each step, the first row of each sequence and the
        # number of all rows, and then the tokens of each sequence
        self.request_times = array("d")
        self.request_counts = array("i")  # tokens of the prompt, and of the longest answer
        self.tokens = array("i")  # of each first and last token: request, step, whether it is last
        self.taken: StepInput | None = None
        """The step that was waited for last."""
        self._open: dict[str, int] = {}
        self._waiting: set[str] = set()

    def request(self, request: EngineRequest) -> None:
        """Note a request that has reached the engine."""
        self.request_times.append(monotonic())
        self.request_counts.append(len(request.prompt_token_ids))
        self.request_counts.append(request.params.max_tokens or 0)
        self._open[request.request_id] = len(self.request_times) - 1
        self._waiting.add(request.request_id)

    def step(self, begun: float, ended: float, updates: list[SequenceUpdate]) -> None:
        """Note a step that has ended, if it computed anything."""
        step, self.taken = self.taken, None
        if step is None:
            return
        number = len(self.step_times) // 2
        self.step_times.append(begun)
        self.step_times.append(ended)
        self.step_counts.append(len(step.context_lens))
        self.step_counts.append(len(step.logit_rows))
        self.lengths += step.query_starts.tobytes()
        self.lengths += step.context_lens.tobytes()
        for each in updates:
            name = each.request_id
            if name in self._waiting:
                self._waiting.discard(name)
                self.tokens.extend((self._open[name], number, 0))
            if each.finish_reason is not None and name in self._open:
                self.tokens.extend((self._open.pop(name), number, 1))

    def log(self) -> EngineLog:
        """All of it, to be written."""
        return EngineLog(
            step_times=self.step_times.tobytes(),
            step_counts=self.step_counts.tobytes(),
            lengths=bytes(self.lengths),
            request_times=self.request_times.tobytes(),
            request_counts=self.request_counts.tobytes(),
            tokens=self.tokens.tobytes(),
        )


class NotedStep:
    """A submitted step, which is noted once it is waited for."""

    def __init__(self, pending: Pending, step: StepInput, notes: Notes) -> None:
        self._pending = pending
        self._step = step
        self._notes = notes

    def wait(self) -> StepOutcome:
        outcome = self._pending.wait()
        self._notes.taken = self._step
        return outcome


class NotedExecutor:
    """An executor around the real one, which passes all on and notes the sizes of steps."""

    def __init__(self, executor: Executor, notes: Notes) -> None:
        self._executor = executor
        self._notes = notes
        self.capabilities = executor.capabilities
        self.num_blocks = executor.num_blocks
        self.adapters = executor.adapters

    @property
    def packed(self) -> PackedRegions | None:
        return self._executor.packed

    @property
    def tunable(self) -> Tunable | None:
        return self._executor.tunable

    @property
    def blocks(self) -> BlockIO | BlockMover | None:
        return self._executor.blocks

    @property
    def sampler(self) -> Sampler[Any]:
        return self._executor.sampler

    def submit(self, step: StepInput, sampling: Sampling | None = None) -> Pending:
        return NotedStep(self._executor.submit(step, sampling), step, self._notes)

    def close(self) -> None:
        self._executor.close()


class RecordedCore:
    """A core around the real one, which passes all on and notes what comes and what ends."""

    def __init__(self, core: Core, notes: Notes, path: Path) -> None:
        self._core = core
        self._notes = notes
        self._path = path

    @property
    def has_work(self) -> bool:
        return self._core.has_work

    @property
    def tokens_computed(self) -> int:
        return self._core.tokens_computed

    def add_request(self, request: EngineRequest) -> None:
        self._core.add_request(request)
        self._notes.request(request)

    def abort(self, request_ids: Iterable[str], index: int | None = None) -> list[SequenceUpdate]:
        return self._core.abort(request_ids, index)

    def step(self) -> list[SequenceUpdate]:
        begun = monotonic()
        updates = self._core.step()
        self._notes.step(begun, monotonic(), updates)
        return updates

    def stats(self) -> EngineStats:
        return self._core.stats()

    def cache_changes(self, position: int | None) -> CacheChanges:
        return self._core.cache_changes(position)

    def reset_prefix_cache(self) -> None:
        self._core.reset_prefix_cache()

    def load_adapter(self, path: str) -> str:
        return self._core.load_adapter(path)

    def drop_adapter(self, digest: str) -> None:
        self._core.drop_adapter(digest)

    def check_integrity(self) -> None:
        self._core.check_integrity()

    def close(self) -> None:
        """Write the notes, and close the real core."""
        try:
            write_log(self._path, self._notes.log())
        finally:
            self._core.close()


def load(config: EngineConfig, startup: Startup) -> LoadedCore:
    """Load the real engine, with notes around it. Raises ConfigError where no file is named."""
    path = os.environ.get(LOG_VARIABLE, "")
    if not path:
        raise ConfigError(
            f"an engine that records its steps needs a file for them; name one: {LOG_VARIABLE}=FILE"
        )
    notes = Notes()
    loaded = load_core_around(config, startup, lambda executor: NotedExecutor(executor, notes))
    return replace(loaded, core=RecordedCore(loaded.core, notes, Path(path)))
