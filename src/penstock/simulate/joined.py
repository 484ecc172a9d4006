"""A load as its client and the engine saw it, together: which step brought what to whom.

Both noted times by the same clock of the machine. A request is known in both by the tokens of its
prompt and of its answer; of those alike, the first that was sent came first.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.simulate.engine_log import LoggedSteps
from penstock.simulate.recording import ClientRequest, RecordedLoad, Recording
from penstock.simulate.step_times import ObservedStep, WindowShare

F64 = NDArray[np.float64]

_SLACK_S: Final = 0.02
"""How much earlier and later than its load a step may be that belongs to it."""


@dataclass(frozen=True)
class Traced:
    """A request on its way. Times are those of ``time.monotonic``."""

    client: ClientRequest
    sent: float
    arrived: float
    """When the engine took it in: between steps."""
    first_step: int
    last_step: int
    """The steps, among all of the log, of its first and of its last token."""

    @property
    def first(self) -> float:
        """When the client read its first chunk."""
        return self.sent + self.client.gaps_us[0] / 1e6

    @property
    def last(self) -> float:
        """When the client read its last one."""
        return self.sent + sum(self.client.gaps_us) / 1e6


@dataclass(frozen=True)
class JoinedLoad:
    """A load that was measured, and what the engine did meanwhile."""

    recorded: RecordedLoad
    log: LoggedSteps
    begin: int
    end: int
    """Its steps are those from ``begin`` to before ``end``."""
    requests: tuple[Traced, ...]

    @property
    def begins(self) -> F64:
        return self.log.begins[self.begin : self.end]

    @property
    def ends(self) -> F64:
        return self.log.ends[self.begin : self.end]

    @property
    def seconds(self) -> F64:
        return self.ends - self.begins

    @cached_property
    def open(self) -> NDArray[np.int64]:
        """Requests that the engine still has when each step has ended."""
        arrived = np.sort([each.arrived for each in self.requests])
        ended = np.sort([each.last_step - self.begin for each in self.requests])
        number = np.arange(self.end - self.begin)
        return np.searchsorted(arrived, self.ends) - np.searchsorted(ended, number, side="right")

    @cached_property
    def gaps(self) -> F64:
        """Seconds from the end of each step to the next one's begin; NaN where the engine had
        nothing to do in between."""
        found = np.full(self.end - self.begin, np.nan)
        if len(found) > 1:
            found[:-1] = np.where(self.open[:-1] > 0, self.begins[1:] - self.ends[:-1], np.nan)
        return found

    def observed(self, windows: Sequence[WindowShare]) -> Iterator[ObservedStep]:
        """Each of its steps, with its size."""
        seen = [each.seen for each in windows]
        tokens, gaps = self.log.tokens, self.gaps
        for step in range(self.begin, self.end):
            place = step - self.begin
            behind = place > 0 and not np.isnan(gaps[place - 1])
            yield ObservedStep(
                self.log.shape(step, seen),
                int(tokens[step - 1]) if behind else 0,
                float(self.log.ends[step] - self.log.begins[step]),
            )


def joined(recording: Recording, log: LoggedSteps) -> list[JoinedLoad]:
    """The loads of a recording, with what its engine noted of each."""
    return [_joined(each, log) for each in recording.loads]


def _joined(load: RecordedLoad, log: LoggedSteps) -> JoinedLoad:
    start, stop = load.began - _SLACK_S, load.began + load.seconds + _SLACK_S
    begin, end = np.searchsorted(log.begins, [start, stop]).tolist()
    first, last = np.searchsorted(log.arrivals, [start, stop]).tolist()
    came: dict[tuple[int, int], deque[int]] = defaultdict(deque)
    for number in range(first, last):
        came[int(log.prompts[number]), int(log.outputs[number])].append(number)
    requests = []
    for client in sorted(load.requests, key=lambda each: each.sent_s):
        alike = came[client.prompt, client.output]
        if not alike:
            continue  # the server counts tokens in another way: nothing is known of this one
        number = alike.popleft()
        steps = int(log.first_step[number]), int(log.last_step[number])
        if min(steps) >= begin:
            at = float(log.arrivals[number])
            requests.append(Traced(client, load.began + client.sent_s, at, *steps))
    return JoinedLoad(load, log, begin, end, tuple(requests))
