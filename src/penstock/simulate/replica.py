"""One server: its scheduler, its cache and its front end, on a clock of their own."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from typing import Final

from penstock.errors import RequestError
from penstock.sampling.params import SamplingParams
from penstock.scheduler.output import ScheduledStep
from penstock.simulate.asked import TOKEN, Asked
from penstock.simulate.clock import StepShape, decode_reads, seen_by
from penstock.simulate.front_end import NEVER, Answer, FrontEnd
from penstock.simulate.setup import Setup

_MOST_STEPS: Final = 2048
"""Steps that are taken at once."""


@dataclass
class Work:
    """What a replica has done so far."""

    steps: int = 0
    rows: int = 0
    """Sequences of all steps."""
    busy_s: float = 0.0
    running_s: float = 0.0
    """Sequences of steps, times their seconds."""
    used_s: float = 0.0
    """Blocks in use, times their seconds."""
    most_rows: int = 0
    most_sequences: int = 0
    longest: int = 0
    """Tokens of the longest sequence."""


class Replica:
    """Serves what is offered to it, up to a time that its caller names.

    The engine's loop takes in what has arrived whenever no step runs, and starts the next step at
    once if there is work. A request that arrives during a step waits for its end, so
    :meth:`advance` runs the steps that *begin* before a time; what they end is in ``ended`` with
    the later time of their end.
    """

    def __init__(self, setup: Setup, number: int = 0) -> None:
        self.number = number
        self.setup = setup
        self.scheduler = setup.limits.scheduler()
        self.front = FrontEnd(setup.front)
        self.work = Work()
        self.ended: list[tuple[float, int, Answer]] = []
        """A heap of answers by the end of their last step, until :meth:`settle`."""
        self.requests = 0
        """Open ones, as far as they were settled."""
        self.tokens = 0
        """Tokens, prompts' and answers', of open requests."""
        self._at = 0.0
        self._steady_until = 0.0
        self._inbox: list[tuple[float, int, Answer]] = []
        self._freed: deque[float] = deque()  # when the latest answers ended, in order
        self._answers: dict[str, Answer] = {}
        self._params: dict[int, SamplingParams] = {}  # by the tokens of an answer
        self._count = 0
        self._owed = 0.0  # seconds that the next step takes longer
        self._disturbed_until = 0.0
        self._pace = 0.0  # seconds of the latest step
        self._before = 0  # its tokens

    @property
    def next_at(self) -> float:
        """No step that begins before this time ends a request; infinite where nothing is open."""
        arrival = self._inbox[0][0] if self._inbox else NEVER
        if not self.scheduler.has_work:
            return max(self._at, arrival)
        return max(self._at, min(self._steady_until, arrival))

    def offer(self, asked: Asked) -> Answer:
        """Give it a request that was sent at ``asked.sent_s``. One that it refuses has an error."""
        answer = Answer(asked)
        limits = self.setup.limits
        opened = self._open(asked.sent_s)
        arrives = self.front.inbound(asked.sent_s, asked.prompt)
        if opened >= limits.max_num_seqs + limits.max_waiting:
            return self._refused(answer, "http 429", arrives)
        try:
            self.scheduler.check(asked.prompt, self._params_of(asked))
        except RequestError:
            return self._refused(answer, "http 400", arrives)
        self._disturb(asked.sent_s)
        self.front.open += 1
        self.requests += 1
        self.tokens += asked.prompt + asked.output
        self._count += 1
        heappush(self._inbox, (arrives, self._count, answer))
        return answer

    def _disturb(self, at: float) -> None:
        """Let the steps that run lose what a request takes that is sent at a time. Those that come
        while an earlier one is still on its way disturb them together."""
        end = at + self.setup.front.lost_request
        if self.scheduler.has_work:
            self._owed += max(end - max(at, self._disturbed_until), 0.0)
            self._steady_until = 0.0
        self._disturbed_until = max(self._disturbed_until, end)

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
        while True:
            self._take_in()
            if not self.scheduler.has_work:
                self._owed = 0.0
                if not self._inbox or self._inbox[0][0] >= until:
                    return
                self._at = max(self._at, self._inbox[0][0])
                continue
            if self._at >= until:
                return
            stop = min(until, self._inbox[0][0]) if self._inbox else until
            ended = self._steady(stop)
            if ended is None:
                ended = self._one()
            if ended and one_end:
                return

    def _take_in(self) -> None:
        while self._inbox and self._inbox[0][0] <= self._at:
            answer = heappop(self._inbox)[2]
            limits = self.setup.limits
            block = limits.block_size if limits.enable_prefix_caching else None
            sequence = answer.asked.sequence(self._params_of(answer.asked), block)
            self._answers[sequence.request_id] = answer
            self.scheduler.add(sequence)
            self._steady_until = 0.0

    def _params_of(self, asked: Asked) -> SamplingParams:
        found = self._params.get(asked.output)
        if found is None:
            found = self._params[asked.output] = SamplingParams(
                max_tokens=asked.output, ignore_eos=True
            )
        return found

    def _steady(self, stop: float) -> bool | None:
        """Take steps that only decode and begin before ``stop``; returns whether the last ended a
        request, or None if there are no such steps."""
        scheduler, work = self.scheduler, self.work
        expected = 2 * (stop - self._at) / self._pace + 2 if self._pace > 0 else NEVER
        limit = _MOST_STEPS if expected > _MOST_STEPS else int(expected)
        count = scheduler.steady_steps(limit)
        if count < 2:
            return None
        running = scheduler.running
        answers = [self._answers[each.request_id] for each in running]
        if any(each.first_s is None for each in answers):
            return None
        lens = [len(each.token_ids) for each in running]
        clock, number = self.setup.clock, len(running)
        reads = decode_reads(clock.windows, lens, count)
        front = self.setup.front
        alone = clock.decoding(number, reads)
        self._pace = front.whole(alone[0], number)
        alone[0] += clock.behind(self._before, number)
        seconds = [front.whole(each, number) for each in alone]
        seconds[0] += self._owed
        self._owed, self._before = 0.0, number
        times = list(accumulate(seconds, initial=self._at))
        self._steady_until = times[-2]
        taken = count if times[-2] < stop else bisect_left(times, stop)
        before = scheduler.cache.num_used_blocks
        ended = scheduler.decode_steadily(taken, TOKEN)
        ends = times[1 : taken + 1]
        self._count_work(taken, number, ends[-1] - self._at, before)
        work.most_rows = max(work.most_rows, number)
        work.longest = max(work.longest, max(lens) + taken)
        self._at = ends[-1]
        if not ended:
            self.front.brought_steadily(ends, answers)
            return False
        if taken > 1:
            self.front.brought_steadily(ends[:-1], answers)
        self._end(answers, [self._answers.pop(each.request_id) for each in ended])
        return True

    def _one(self) -> bool:
        """Run one step; returns whether it ended a request."""
        scheduler = self.scheduler
        before = scheduler.cache.num_used_blocks
        step = scheduler.schedule()
        if step is None:
            raise RuntimeError("requests are open, and there is no step for them")
        seconds = self._seconds(step) + self._owed
        self._owed = 0.0
        self._at += seconds
        scheduler.update(step, [[TOKEN]] * len(step.samples))
        answers, ended = [], []
        for each in step.samples:
            answer = self._answers[each.request_id]
            answers.append(answer)
            if answer.first_s is None:
                answer.cached = each.num_cached_tokens
            if each.finish_reason is not None:
                ended.append(answer)
                del self._answers[each.request_id]
        self._end(answers, ended)
        self._count_work(1, len(step.sequences), seconds, before)
        self._pace = seconds
        return bool(ended)

    def _end(self, answers: list[Answer], ended: list[Answer]) -> None:
        """Send what the step brings that has just ended."""
        self.front.brought(self._at, answers, ended)
        for answer in ended:
            self._freed.append(self._at)
            self._count += 1
            heappush(self.ended, (self._at, self._count, answer))
        self._steady_until = 0.0

    def _seconds(self, step: ScheduledStep) -> float:
        windows, work = self.setup.clock.windows, self.work
        reads, pairs = [0.0] * len(windows), [0.0] * len(windows)
        longest = work.longest
        for place, window in enumerate(windows):
            read = pair = 0
            for each in step.sequences:
                start = each.start
                end = start + each.num_tokens
                if end > longest:
                    longest = end
                if window is None:
                    read += end
                    pair += (end * (end + 1) - start * (start + 1)) // 2
                else:
                    seen = seen_by(window, start, end)
                    read += seen[0]
                    pair += seen[1]
            reads[place], pairs[place] = read, pair
        work.longest = longest
        number = len(step.sequences)
        work.most_rows = max(work.most_rows, step.num_tokens)
        chunks = number - step.num_decoded
        shape = StepShape(
            step.num_tokens, len(step.samples), number, chunks, tuple(reads), tuple(pairs)
        )
        clock = self.setup.clock
        seconds = clock.seconds(shape) + clock.behind(self._before, step.num_tokens)
        self._before = step.num_tokens
        return self.setup.front.whole(seconds, number)

    def _count_work(self, steps: int, sequences: int, seconds: float, used: int) -> None:
        """Count steps that began with so many blocks in use."""
        work = self.work
        work.steps += steps
        work.rows += steps * sequences
        work.busy_s += seconds
        work.running_s += sequences * seconds
        work.used_s += (used + self.scheduler.cache.num_used_blocks) / 2 * seconds
        work.most_sequences = max(work.most_sequences, sequences)

    def _refused(self, answer: Answer, error: str, at: float) -> Answer:
        """Refuse a request that arrives at a time; its client knows after the way back."""
        answer.error = error
        answer.end_s = at + self.setup.front.answer
        return answer
