"""When the tokens of steps reach their clients: the front end of one replica, as a clock sees it.

Streams are paced as ``penstock.frontend`` paces them: the first tokens of an answer and the last
are sent at once, and those between are woken together, with pauses in proportion to the number of
open sequences. So on a fast model a chunk has several tokens, and the pauses are what is between
chunks.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import Final

import msgspec

from penstock.frontend.pacing import LONGEST_PAUSE_S, SEQUENCE_S
from penstock.simulate.asked import Asked
from penstock.simulate.gaps import Gaps

NEVER: Final = float("inf")


class FrontTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What a server takes besides its steps, in seconds."""

    request: float
    """The time from sending a request until the engine has it: connection, HTTP, chat template."""
    prompt_token: float
    """The same for each token of its prompt: tokenizing."""
    crowded: float = 0.0
    """What a request takes longer on its way to the engine while others are served."""
    answer: float
    """The time from the end of a step until the first of its chunks is received."""
    chunk: float
    """The time from one chunk of a step to the next stream's."""
    step: float = 0.0
    """What the engine's loop takes between steps."""
    sequence: float = 0.0
    """What each sequence of a step adds to that: its token goes to the server, and what the server
    does with it takes cores from the next step."""
    lost_request: float = 0.0
    """What steps lose to a request that comes while others are served, whose handling takes cores
    from them; to several at once as long as any of them is handled."""
    pause: float = SEQUENCE_S
    """The shortest pause between chunks, for each open sequence."""
    longest_pause: float = LONGEST_PAUSE_S

    def around(self, sequences: int) -> float:
        """What the engine takes around a step of so many sequences."""
        return self.step + self.sequence * sequences

    def inbound(self, prompt: int, others: bool) -> float:
        """Seconds from sending a request until the engine has it; ``others``: some are served."""
        return self.request + self.prompt_token * prompt + (self.crowded if others else 0.0)


class Answer(msgspec.Struct, gc=False):
    """One request on its way through a replica, and what its client saw of it. Times are seconds
    from the run's start."""

    asked: Asked
    first_s: float | None = None
    """When the first chunk was received."""
    second_s: float | None = None
    last_s: float = 0.0
    """When the latest was."""
    chunks: int = 0
    longest_gap: float = 0.0
    pending: bool = False
    """Whether it has tokens that were not sent yet."""
    tokens: int = 0
    cached: int = 0
    error: str | None = None
    end_s: float = 0.0


class FrontEnd:
    """Sends what steps bring. ``gaps`` has the times between chunks of all answers."""

    def __init__(self, times: FrontTimes) -> None:
        self.times = times
        self.gaps = Gaps()
        self.open = 0
        """Sequences that are open: sent, and not answered to their end."""
        self._grown: list[Answer] = []
        self._open_at = 0.0  # the end of the pause
        self._timer = NEVER

    def brought(self, at: float, answers: list[Answer], ended: list[Answer]) -> None:
        """Take in a step that ended ``at`` and brought ``answers`` a token; some have ``ended``."""
        self.wake_until(at)
        lag = self.times.answer
        for each in answers:
            each.tokens += 1
            if each.first_s is None:
                self._send(each, at + lag)
                lag += self.times.chunk
            elif not each.pending:
                each.pending = True
                self._grown.append(each)
        for each in ended:
            if each.pending:
                each.pending = False
                self._send(each, at + lag)
                lag += self.times.chunk
            each.end_s = each.last_s
        self.open -= len(ended)
        self._flush(at)

    def brought_steadily(self, ends: list[float], answers: list[Answer]) -> None:
        """Take in steps that ended at ``ends``, each of which brought a token of every one of
        ``answers``: all have begun, and none ends."""
        self.wake_until(ends[0])
        wakes, left = self._wakes(ends)
        for each in answers:
            each.tokens += len(ends)
            each.pending = left
        if not wakes:
            grown = {id(each) for each in self._grown}
            self._grown += [each for each in answers if id(each) not in grown]
            return
        common = [second - first for first, second in pairwise(wakes)]
        self.gaps.add_each(common, len(answers))
        longest = max(common, default=0.0)
        first, last, lag = wakes[0], wakes[-1], self.times.answer
        for each in answers:
            self._send(each, first + lag)
            each.chunks += len(common)
            each.longest_gap = max(each.longest_gap, longest)
            each.last_s = last + lag
            lag += self.times.chunk
        members = {id(each) for each in answers} if self._grown else set()
        for each in self._grown:  # of sequences that lost their places
            if each.pending and id(each) not in members:
                each.pending = False
                self._send(each, first + lag)
        self._grown = list(answers) if left else []

    def wake_until(self, at: float) -> None:
        """Let the pause end, if it does by then, and send what has grown meanwhile."""
        if self._timer <= at:
            self._wake(self._timer)

    def _flush(self, at: float) -> None:
        if not self._grown or self._timer < NEVER:
            return
        if at >= self._open_at:
            self._wake(at)
        else:
            self._timer = self._open_at

    def _wake(self, at: float) -> None:
        lag = self.times.answer
        for each in self._grown:
            if each.pending:
                each.pending = False
                self._send(each, at + lag)
                lag += self.times.chunk
        self._grown = []
        self._timer = NEVER
        self._open_at = at + self._pause

    @property
    def _pause(self) -> float:
        return min(self.times.pause * self.open, self.times.longest_pause)

    def _wakes(self, steps: list[float]) -> tuple[list[float], bool]:
        """When streams are woken while steps end at these times, and whether some token waits for a
        later time."""
        pause = self._pause
        found: list[float] = []
        place, timer, open_at = 0, self._timer, self._open_at
        left = True
        while True:
            if timer < NEVER:
                if timer > steps[-1]:
                    break
                # A step that ends at this very time comes too late.
                place = bisect_left(steps, timer)
            elif place == len(steps):
                left = False
                break
            elif steps[place] < open_at:
                timer = open_at
                continue
            else:
                timer = steps[place]
                place += 1
            found.append(timer)
            open_at, timer = timer + pause, NEVER
        self._timer, self._open_at = timer, open_at
        return found, left

    def _send(self, each: Answer, at: float) -> None:
        if each.first_s is None:
            each.first_s = at
        else:
            gap = at - each.last_s
            self.gaps.add(gap)
            if gap > each.longest_gap:
                each.longest_gap = gap
            if each.chunks == 1:
                each.second_s = at
        each.last_s = at
        each.chunks += 1
