"""What a simulated step is timed by: its size in a few numbers, and the interface of a clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from penstock.cache.geometry import Chunk, Window
from penstock.plan.costs import seen


class StepShape(NamedTuple):
    """The size of a step, as far as its time depends on it. Unlike a ``StepSize`` it has no arrays:
    millions are made."""

    tokens: int
    logits: int
    sequences: int
    chunks: int
    """Sequences of which it computes more than one token: parts of prompts."""
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

    def behind(self, before: int, tokens: int) -> float:
        """What a step of so many tokens takes longer because the one before it had ``before``."""

    def decoding(self, sequences: int, reads: Sequence[Sequence[float]]) -> list[float]:
        """The times of steps, one after the other, that decode a token of each of so many
        sequences: of each window ``reads`` has the tokens that each step reads."""


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


def straight(
    fixed: float, slopes: Sequence[float], reads: Sequence[Sequence[float]]
) -> list[float]:
    """``fixed`` and so much for each token that is read of each window, step by step."""
    if not slopes:
        raise ValueError("a clock without windows knows no number of steps")
    first, *others = [(slope, each) for slope, each in zip(slopes, reads, strict=True)]
    seconds = [fixed + first[0] * count for count in first[1]]
    for slope, each in others:
        seconds = [before + slope * count for before, count in zip(seconds, each, strict=True)]
    return seconds


def decode_reads(
    windows: Sequence[Window | None], lens: Sequence[int], steps: int
) -> list[Sequence[float]]:
    """What each of so many steps reads, for each window, that decode sequences of these lengths,
    the token of the first step included."""
    found: list[Sequence[float]] = []
    for window in windows:
        if window is None:
            first, count = sum(lens), len(lens)
            found.append(range(first, first + count * steps, count))
        else:
            later = np.arange(steps, dtype=np.int32)
            each = np.asarray(lens, np.int32)[None, :] + later[:, None]
            found.append(seen(each, window).sum(axis=1).tolist())
    return found
