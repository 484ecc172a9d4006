"""What a simulated step is timed by: its size in a few numbers, and the interface of a clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.cache.geometry import Chunk, Window
from penstock.plan.costs import seen

F64 = NDArray[np.float64]


class StepShape(NamedTuple):
    """The size of a step, as far as its time depends on it. Unlike a ``StepSize`` it has no arrays:
    millions are made."""

    tokens: int
    logits: int
    sequences: int
    reads: tuple[float, ...]
    """Cached tokens that its sequences see together, for each of the clock's windows."""
    pairs: tuple[float, ...]
    """Tokens seen by each of its rows, summed, for each window."""


class StepClock(Protocol):
    """Seconds of steps, from the call of the scheduler to the next."""

    @property
    def windows(self) -> tuple[Window | None, ...]:
        """What attention sees in the layers of the model: one entry for each kind of layer."""

    def seconds(self, shape: StepShape) -> float:
        """The time of one step."""

    def decoding(self, sequences: int, reads: F64) -> F64:
        """The times of steps that decode a token of each of so many sequences: ``[steps]`` seconds
        for ``reads`` of shape ``[steps, windows]``."""


def seen_by(window: Window | None, start: int, end: int) -> tuple[int, int]:
    """What rows ``start .. end - 1`` of a sequence make a step read of it: the cached tokens that
    the last one sees, and those that each sees, summed."""
    if window is None:
        return end, (end * (end + 1) - start * (start + 1)) // 2
    if isinstance(window, Chunk):
        lens = np.arange(start + 1, end + 1, dtype=np.int32)
        found = seen(lens, window)
        return int(found[-1]), int(found.sum())
    full = max(end - max(start, window), 0)  # rows that see a whole window
    last = end - full
    partial = (last * (last + 1) - start * (start + 1)) // 2
    return min(end, window), full * window + partial


def decode_reads(windows: Sequence[Window | None], lens: Sequence[int], steps: int) -> F64:
    """What each of so many steps reads that decode sequences of these lengths, the token of the
    first step included: ``[steps, windows]``."""
    found = np.empty((steps, len(windows)))
    later = np.arange(steps)
    for place, window in enumerate(windows):
        if window is None:
            found[:, place] = sum(lens) + len(lens) * later
        else:
            each = np.asarray(lens, np.int32)[None, :] + later.astype(np.int32)[:, None]
            found[:, place] = seen(each, window).sum(axis=1)
    return found
