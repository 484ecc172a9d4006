"""Durations and sizes of an engine's steps, for statistics and for signs of life."""

from __future__ import annotations

import time

import msgspec

from penstock.interface.buckets import Buckets
from penstock.interface.messages import EngineStats

STEP_SECONDS = tuple(m * 10.0**e for e in range(-4, 2) for m in (1, 2, 5))  # 0.1 ms to 50 s
STEP_TOKENS = tuple(float(2**i) for i in range(15))  # 1 to 16384


class StepMeter:
    """Records how long steps take and how many tokens they compute."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._seconds = Buckets.empty(STEP_SECONDS)
        self._tokens = Buckets.empty(STEP_TOKENS)

    def begin(self) -> None:
        """Note that a step begins."""
        self._began = time.monotonic()

    def end(self, num_tokens: int) -> None:
        """Note that the step is over and that it computed ``num_tokens`` token positions.

        A step that computed none is not counted: it only waited for a grammar, or submitted
        the first of several.
        """
        began, self._began = self._began, None
        if began is not None and num_tokens:
            self._seconds.add(time.monotonic() - began)
            self._tokens.add(num_tokens)

    def seconds_in_step(self) -> float:
        """Return how long the current step has run, 0 between steps. Any thread may call it."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def added_to(self, stats: EngineStats) -> EngineStats:
        return msgspec.structs.replace(stats, step_seconds=self._seconds, step_tokens=self._tokens)
