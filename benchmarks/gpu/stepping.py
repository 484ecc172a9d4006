"""Driving an engine step by step, timed from outside.

The executor is not wrapped: an engine that works ahead of the device does so here, too. A step's
time is therefore the time between two steps' tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from penstock.bench.meter import SteppedCore
from penstock.errors import EngineDeadError
from penstock.interface.messages import EngineRequest, SequenceUpdate

Clock = Callable[[], float]


@dataclass(frozen=True)
class Window:
    """Steps that decode one token of each of all requests."""

    step_s: list[float]
    processor_s: float  # of the calling thread, mean of a step

    @property
    def mean_s(self) -> float:
        return sum(self.step_s) / len(self.step_s)

    @property
    def median_s(self) -> float:
        return median(self.step_s)


def decode_window(
    core: SteppedCore,
    requests: Sequence[EngineRequest],
    clock: Clock = time.perf_counter,
    processor: Clock = time.thread_time,
) -> Window:
    """Run ``requests`` together; the steps between the last one's first token and the first end.

    Raises EngineDeadError where a request fails, ValueError where no step decodes all: their
    outputs are too short for all to be read, or the engine does not hold as many.
    """
    waiting = {request.request_id for request in requests}
    for request in requests:
        core.add_request(request)
    step_s: list[float] = []
    processor_s = 0.0
    before, before_processor = clock(), processor()
    ended = False
    while core.has_work:
        everyone_decodes = not waiting and not ended
        updates = _step(core)
        now, now_processor = clock(), processor()
        tokens = sum(len(update.token_ids) for update in updates)
        if everyone_decodes and tokens == len(requests):
            step_s.append(now - before)
            processor_s += now_processor - before_processor
        before, before_processor = now, now_processor
        waiting -= {update.request_id for update in updates if update.token_ids}
        ended = ended or any(update.finish_reason is not None for update in updates)
    if not step_s:
        raise ValueError(
            f"no step decoded all {len(requests)} requests; they are too many for the cache, or "
            "end before the last prompt is read"
        )
    return Window(step_s, processor_s / len(step_s))


def run_all(
    core: SteppedCore, requests: Sequence[EngineRequest], clock: Clock = time.perf_counter
) -> tuple[float, int]:
    """Seconds until all ``requests``, offered at once, are done, and the tokens they got."""
    start = clock()
    for request in requests:
        core.add_request(request)
    tokens = 0
    while core.has_work:
        tokens += sum(len(update.token_ids) for update in _step(core))
    return clock() - start, tokens


def _step(core: SteppedCore) -> list[SequenceUpdate]:
    updates = core.step()
    for update in updates:
        if update.error is not None:
            raise EngineDeadError(f"a benchmark request failed: {update.error}")
    return updates
