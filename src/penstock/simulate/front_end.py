"""When requests reach the engine and tokens their clients: a replica's front end, on its clock.

It is one event loop (event_loop.py): requests that come together are read and tokenized one after
the other, and behind the chunks that are being written.

Streams are paced as ``penstock.frontend`` paces them: the first tokens of an answer and the last
are sent at once, and those between are woken together, with pauses in proportion to the number of
open sequences. So on a fast model a chunk has several tokens, and the pauses are what is between
chunks. A pause ends with the first step that ends behind it, or else when the loop's selector looks
at its timers, which is a whole number of milliseconds after it looked last.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from math import ceil
from typing import Final

import msgspec

from penstock.frontend.pacing import LONGEST_PAUSE_S, SEQUENCE_S
from penstock.simulate.asked import Asked
from penstock.simulate.event_loop import EventLoop
from penstock.simulate.gaps import Gaps

NEVER: Final = float("inf")
TIMER_S: Final = 0.001
"""``epoll_wait`` counts milliseconds, and asyncio rounds up to them."""


class FrontTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What a server takes besides its steps, in seconds."""

    request: float
    """The time from sending a request until the engine has it: connection, HTTP, chat template."""
    prompt_token: float
    """The same for each token of its prompt: tokenizing."""
    handled: float = 0.0
    """The part of this time in which the event loop does nothing else, besides tokenizing: what
    comes meanwhile waits."""
    answer: float
    """The time from the end of a step until the first of its chunks is received."""
    chunk: float
    """The time from one chunk of a step to the next stream's, in which the event loop does nothing
    else."""
    step: float = 0.0
    """What the engine's loop takes between steps."""
    slower: float = 0.0
    """The part by which steps take longer than alone, since the server's process and its clients
    share caches, memory and cores with them."""
    sequence: float = 0.0
    """What each sequence of a step adds to that: its token goes to the server, and what the server
    does with it takes cores from the next step."""
    lost_request: float = 0.0
    """What steps lose to a request that comes while others are served, whose handling takes cores
    from them; to several at once as long as any of them is handled."""
    pause: float = SEQUENCE_S
    """The shortest pause between chunks, for each open sequence."""
    longest_pause: float = LONGEST_PAUSE_S

    def whole(self, seconds: float, sequences: int) -> float:
        """What a step of so many sequences takes that alone would take ``seconds``."""
        return seconds * (1 + self.slower) + self.step + self.sequence * sequences


NO_FRONT: Final = FrontTimes(request=0.0, prompt_token=0.0, answer=0.0, chunk=0.0)
"""A front end of which nothing is known yet."""


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
    below: int = 0
    """Tokens of its prompt that the disk had when the engine was asked."""
    error: str | None = None
    end_s: float = 0.0


class FrontEnd:
    """Takes requests in, and sends what steps bring. ``gaps`` has the times between chunks of all
    answers."""

    def __init__(self, times: FrontTimes) -> None:
        self.times = times
        self._loop = EventLoop()
        self.gaps = Gaps()
        self.open = 0
        """Sequences that are open: sent, and not answered to their end."""
        self._grown: list[Answer] = []
        self._open_at = 0.0  # the end of the pause
        self._waits = False  # for that end, with what has grown
        self._looked_at = 0.0  # when the loop had something to do last, while it waits

    def inbound(self, at: float, prompt: int) -> float:
        """Take in a request that is sent at a time; returns when the engine has it."""
        times = self.times
        tokenizing = times.prompt_token * prompt
        begun = self._loop.ask(at, times.handled + tokenizing)
        return begun + times.request + tokenizing

    def brought(self, at: float, answers: list[Answer], ended: list[Answer]) -> None:
        """Take in a step that ended ``at`` and brought ``answers`` a token; some have ``ended``."""
        self.wake_until(at)
        self._looked_at = at
        now = []
        for each in answers:
            each.tokens += 1
            if each.first_s is None:
                now.append(each)
            elif not each.pending:
                each.pending = True
                self._grown.append(each)
        for each in ended:
            if each.pending:
                each.pending = False
                now.append(each)
        if now:
            self._write(now, at)
        for each in ended:
            each.end_s = each.last_s
        self.open -= len(ended)
        if not self._grown:
            return
        if at >= self._open_at:
            self._wake(at)
        else:
            self._waits = True

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
        members = {id(each) for each in answers} if self._grown else set()
        # Besides, of sequences that lost their places.
        others = [each for each in self._grown if each.pending and id(each) not in members]
        chunk, number = self.times.chunk, len(answers)
        begun = [self._loop.write(wakes[0], chunk * (number + len(others)))]
        begun += [self._loop.write(wake, chunk * number) for wake in wakes[1:]]
        self._send_each([*answers, *others], begun[0])
        for each in others:
            each.pending = False
        common = [second - first for first, second in pairwise(begun)]
        self.gaps.add_each(common, number)
        longest = max(common, default=0.0)
        last = begun[-1] + self.times.answer
        for place, each in enumerate(answers):
            each.chunks += len(common)
            each.longest_gap = max(each.longest_gap, longest)
            each.last_s = last + place * chunk
        self._grown = list(answers) if left else []

    def wake_until(self, at: float) -> None:
        """Let the pause end, if the loop's timer tells of that before, and send what has grown
        meanwhile. What ends at that very time is taken in first, as the loop does."""
        if self._waits and (timer := _rings(self._looked_at, self._open_at)) < at:
            self._wake(timer)

    def _wake(self, at: float) -> None:
        grown = [each for each in self._grown if each.pending]
        for each in grown:
            each.pending = False
        self._grown = []
        self._waits = False
        self._open_at = at + self._pause
        if grown:
            self._write(grown, at)

    def _write(self, answers: list[Answer], at: float) -> None:
        """Send each a chunk, once the loop comes to it."""
        self._send_each(answers, self._loop.write(at, self.times.chunk * len(answers)))

    def _send_each(self, answers: list[Answer], begun: float) -> None:
        """Send each a chunk, one after the other."""
        first, chunk = begun + self.times.answer, self.times.chunk
        for place, each in enumerate(answers):
            self._send(each, first + place * chunk)

    @property
    def _pause(self) -> float:
        return min(self.times.pause * self.open, self.times.longest_pause)

    def _wakes(self, steps: list[float]) -> tuple[list[float], bool]:
        """When streams are woken while steps end at these times, and whether some token waits for a
        later time."""
        pause = self._pause
        found: list[float] = []
        place, open_at, waits, looked_at = 0, self._open_at, self._waits, self._looked_at
        # The first step at ``place`` or later whose tokens nobody was woken for.
        while waits or place < len(steps):
            due = bisect_left(steps, open_at, place)
            if due > place:
                waits, looked_at = True, steps[due - 1]
            if due == len(steps):
                break
            at, taken = steps[due], due + 1
            if waits and (timer := _rings(looked_at, open_at)) < at:
                at, taken = timer, due
            found.append(at)
            place, open_at, waits = taken, at + pause, False
        self._open_at, self._waits, self._looked_at = open_at, waits, steps[-1]
        return found, waits

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


def _rings(looked_at: float, due: float) -> float:
    """When a timer that is ``due`` ends the wait of a loop that looked at it last, and has nothing
    else to do."""
    return looked_at + ceil((due - looked_at) / TIMER_S - 1e-6) * TIMER_S
