"""What an engine noted of its steps and requests: a file, and the arrays in it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.cache.geometry import Window
from penstock.errors import PenstockError
from penstock.plan.costs import seen
from penstock.simulate.clock import StepShape

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]


class EngineLog(msgspec.Struct, frozen=True, kw_only=True):
    """The notes of one engine, as bytes of arrays. Times are those of ``time.monotonic``."""

    step_times: bytes
    """Two float64 for each step: when it began and ended."""
    step_counts: bytes
    """Two int32 for each step: its sequences, and its rows with logits."""
    lengths: bytes
    """Numbers in int32: of a step of S sequences S + 1 first rows, and then S lengths."""
    request_times: bytes
    """A float64 for each request: when the engine had it."""
    request_counts: bytes
    """Two int32 for each request: tokens of its prompt, and of its longest answer."""
    tokens: bytes
    """Three int32 for each first or last token of a request: the request, the step that brought it,
    and 1 if it was the last."""


def write_log(path: Path, log: EngineLog) -> None:
    """Write the notes of an engine that ends."""
    path.write_bytes(msgspec.msgpack.encode(log))


def read_log(path: Path) -> EngineLog:
    """Raises PenstockError where the engine left none."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=EngineLog)
    except (OSError, msgspec.DecodeError) as error:
        raise PenstockError(
            f"the engine that was measured left no record of its steps ({error}); it must have "
            "been killed: see its messages above, and calibrate again"
        ) from None


class LoggedSteps:
    """The arrays of an engine's log."""

    def __init__(self, log: EngineLog) -> None:
        times: F64 = np.frombuffer(log.step_times, np.float64).reshape(-1, 2)
        counts: I32 = np.frombuffer(log.step_counts, np.int32).reshape(-1, 2)
        self.begins, self.ends = times[:, 0], times[:, 1]
        self.sequences, self.logits = counts[:, 0], counts[:, 1]
        self._lengths: I32 = np.frombuffer(log.lengths, np.int32)
        self._at = np.concatenate([[0], np.cumsum(2 * self.sequences.astype(np.int64) + 1)])
        self.tokens: I32 = self._lengths[self._at[:-1] + self.sequences]
        self.arrivals: F64 = np.frombuffer(log.request_times, np.float64)
        asked: I32 = np.frombuffer(log.request_counts, np.int32).reshape(-1, 2)
        self.prompts, self.outputs = asked[:, 0], asked[:, 1]
        ended: I32 = np.frombuffer(log.tokens, np.int32).reshape(-1, 3)
        self.first_step, self.last_step = self._steps_of(ended, 0), self._steps_of(ended, 1)

    def __len__(self) -> int:
        return len(self.begins)

    @cached_property
    def seconds(self) -> F64:
        return self.ends - self.begins

    def shape(self, step: int, windows: Sequence[Window | None]) -> StepShape:
        """The size of a step, as clocks see it."""
        count, at = int(self.sequences[step]), int(self._at[step])
        rows = np.diff(self._lengths[at : at + count + 1])
        lens = self._lengths[at + count + 1 : at + 2 * count + 1]
        reads, pairs = [], []
        for window in windows:
            reads.append(float(seen(lens, window).sum()))
            if window is None:
                ends, starts = lens.astype(np.int64), (lens - rows).astype(np.int64)
                pairs.append(float((ends * (ends + 1) - starts * (starts + 1)).sum() // 2))
            else:
                each = np.concatenate(
                    [np.arange(end - n + 1, end + 1) for end, n in zip(lens, rows, strict=True)]
                )
                pairs.append(float(seen(each.astype(np.int32), window).sum()))
        return StepShape(
            int(self.tokens[step]),
            int(self.logits[step]),
            count,
            int((rows > 1).sum()),
            tuple(reads),
            tuple(pairs),
        )

    def _steps_of(self, ended: I32, last: int) -> I32:
        """The step of each request's first or last token; -1 where it has none."""
        found = np.full(len(self.arrivals), -1, np.int32)
        those = ended[ended[:, 2] == last]
        found[those[:, 0]] = those[:, 1]
        return found
