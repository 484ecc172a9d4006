"""How long calls keep the device busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol

import torch

_AHEAD_CYCLES = 200_000_000
"""Clock cycles, about 0.1 s, that the device waits while the host queues a step's launches:
without this wait the time between two events would be the host's."""


class Timer(Protocol):
    """A clock on the device."""

    def seconds(self, call: Callable[[], object], times: int) -> float:
        """Mean of ``times`` calls queued one behind the other."""
        ...

    def each(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        """Seconds of every call, in one pass through all."""
        ...


class CudaTimer:
    """CUDA events on the current stream."""

    def seconds(self, call: Callable[[], object], times: int) -> float:
        first, last = _event(), _event()
        first.record()
        for _ in range(times):
            call()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3 / times

    def each(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        events = [_event() for _ in range(len(calls) + 1)]
        torch.cuda.synchronize()
        torch.cuda._sleep(_AHEAD_CYCLES)
        events[0].record()
        for call, event in zip(calls, events[1:], strict=True):
            call()
            event.record()
        events[-1].synchronize()
        return [float(a.elapsed_time(b)) / 1e3 for a, b in pairwise(events)]


class WallTimer:
    """The host's clock, where there is no device and nothing is measured."""

    def seconds(self, call: Callable[[], object], times: int) -> float:
        return self.each([call])[0]

    def each(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        spent = []
        for call in calls:
            start = time.perf_counter()
            call()
            spent.append(time.perf_counter() - start)
        return spent


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def best(timer: Timer, call: Callable[[], object], times: int, repeats: int) -> float:
    """The fastest of ``repeats`` means of ``times`` calls, after one call that warms up."""
    timer.seconds(call, 1)
    return min(timer.seconds(call, times) for _ in range(repeats))
