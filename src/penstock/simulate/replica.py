"""One server: its front end and its engine, on a clock of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

from penstock.cache.changes import CacheChanges
from penstock.errors import RequestError
from penstock.scheduler.scheduler import Scheduler
from penstock.simulate.asked import Asked
from penstock.simulate.engine import Engine, Work
from penstock.simulate.front_end import NEVER, Answer, FrontEnd
from penstock.simulate.setup import Setup


class Replica:
    """Serves what is offered to it, up to a time that its caller names.

    The engine's loop takes in what has arrived whenever no step runs, and starts the next step at
    once if there is work. A request that arrives during a step waits for its end, so
    :meth:`advance` runs the steps that *begin* before a time; what they end is in ``ended`` with
    the later time of their end.
    """

    def __init__(self, setup: Setup, number: int = 0, seed: int = 0) -> None:
        """``seed`` decides what is left to chance."""
        self.number = number
        self.setup = setup
        self.engine = Engine(setup, self, seed=(seed, number))
        self.front = FrontEnd(setup.front)
        self.ended: list[tuple[float, int, Answer]] = []
        """A heap of answers by the end of their last step, until :meth:`settle`."""
        self.requests = 0
        """Open ones, as far as they were settled."""
        self.tokens = 0
        """Tokens, prompts' and answers', of open requests."""
        self._inbox: list[tuple[float, int, Answer]] = []
        self._freed: deque[float] = deque()  # when the latest answers ended, in order
        self._count = 0

    @property
    def scheduler(self) -> Scheduler:
        return self.engine.scheduler

    @property
    def works(self) -> tuple[Work, ...]:
        """What its engines have done."""
        return (self.engine.work,)

    @property
    def next_at(self) -> float:
        """No step that begins before this time ends a request; infinite where nothing is open."""
        engine, arrival = self.engine, self._inbox[0][0] if self._inbox else NEVER
        if not engine.has_work:
            return max(engine.at, arrival)
        return max(engine.at, min(engine.steady_until, arrival))

    def changes(self, position: int | None) -> CacheChanges:
        """How the prefixes that it finds have changed since a position."""
        return self.scheduler.cache.changes_after(position)

    def offer(self, asked: Asked) -> Answer:
        """Give it a request that was sent at ``asked.sent_s``. One that it refuses has an error."""
        answer = Answer(asked)
        limits = self.setup.limits
        opened = self._open(asked.sent_s)
        arrives = self.front.inbound(asked.sent_s, asked.prompt)
        if opened >= limits.max_num_seqs + limits.max_waiting:
            return self._refused(answer, "http 429", arrives)
        try:
            self.scheduler.check(asked.prompt, self.engine.params(asked.output))
        except RequestError:
            return self._refused(answer, "http 400", arrives)
        self.engine.disturb(asked.sent_s)
        self.front.open += 1
        self.requests += 1
        self.tokens += asked.prompt + asked.output
        self._count += 1
        heappush(self._inbox, (arrives, self._count, answer))
        return answer

    def _open(self, at: float) -> int:
        """Its open requests at a time to which it has advanced: those that the latest step ends are
        open until its end."""
        freed = self._freed
        while freed and freed[0] <= at:
            freed.popleft()
        return self.front.open + len(freed)

    def settle(self, at: float) -> Iterator[Answer]:
        """Return the answers that have ended by then, which are open no more."""
        while self.ended and self.ended[0][0] <= at:
            answer = heappop(self.ended)[2]
            self.requests -= 1
            self.tokens -= answer.asked.prompt + answer.asked.output
            yield answer

    def advance(self, until: float, one_end: bool = False) -> None:
        """Run the steps that begin before ``until``; with ``one_end``, at most to the first that
        ends a request."""
        engine, inbox = self.engine, self._inbox
        while True:
            while inbox and inbox[0][0] <= engine.at:
                engine.add(heappop(inbox)[2])
            if not engine.has_work:
                if not inbox or inbox[0][0] >= until:
                    engine.idle_until(engine.at)
                    return
                engine.idle_until(inbox[0][0])
                continue
            if engine.at >= until:
                return
            stop = min(until, inbox[0][0]) if inbox else until
            if engine.run(stop) and one_end:
                return

    def brought(self, at: float, answers: list[Answer], ended: list[Answer]) -> None:
        """Send what the step brings that has just ended."""
        self.front.brought(at, answers, ended)
        for answer in ended:
            self._freed.append(at)
            self._count += 1
            heappush(self.ended, (at, self._count, answer))

    def brought_steadily(self, ends: list[float], answers: list[Answer]) -> None:
        self.front.brought_steadily(ends, answers)

    def _refused(self, answer: Answer, error: str, at: float) -> Answer:
        """Refuse a request that arrives at a time; its client knows after the way back."""
        answer.error = error
        answer.end_s = at + self.setup.front.answer
        return answer
