"""One engine: its scheduler and its books, and the steps that it runs, on a clock of their own."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

from penstock.interface.messages import SequenceUpdate
from penstock.sampling.params import SamplingParams
from penstock.scheduler.output import ScheduledStep
from penstock.scheduler.sequence import SequenceState
from penstock.simulate.asked import TOKEN
from penstock.simulate.below import TierBooks
from penstock.simulate.clock import StepShape, decode_reads, seen_by
from penstock.simulate.front_end import NEVER, Answer
from penstock.simulate.setup import Setup
from penstock.simulate.stages import Flight
from penstock.simulate.uneven import Drawn

_MOST_STEPS: Final = 2048
"""Steps that are taken at once."""


@dataclass
class Work:
    """What an engine has done so far."""

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


class Receiver(Protocol):
    """Whoever is told what steps bring."""

    def brought(self, at: float, answers: list[Answer], ended: list[Answer]) -> None:
        """A step ended at a time, and brought each of ``answers`` a token; some have ended."""

    def brought_steadily(self, ends: list[float], answers: list[Answer]) -> None:
        """Steps ended at these times, each of which brought a token of every one of ``answers``:
        all have begun, and none has ended."""


class _Sent(NamedTuple):
    """A step in flight."""

    step: ScheduledStep
    shape: StepShape
    ready: float
    """When the engine's own stage can begin with it."""
    used: int
    """Blocks in use before it was composed."""


class Engine:
    """Runs steps, one round of its loop after the other, at ``at``: each begins a step, and takes
    one in where no more may be in flight."""

    def __init__(
        self,
        setup: Setup,
        receiver: Receiver,
        crowded: Callable[[], bool] = lambda: False,
        seed: tuple[int, ...] = (),
    ) -> None:
        """``crowded``: whether another engine of the same machine computes now. ``seed`` decides
        which steps take longer than others of their size."""
        self.setup = setup
        self.scheduler = setup.limits.scheduler(setup.stages.depth)
        disk = setup.limits.disk_blocks
        self._below = (
            None if disk is None else TierBooks(self.scheduler.cache, disk, lambda: self.at)
        )
        self.work = Work()
        self.at = 0.0
        """When its loop has come back from the latest step."""
        self.steady_until = 0.0
        """No step that begins before this time ends a request."""
        self._receiver = receiver
        self._crowded = crowded
        self._flight = Flight(setup.stages)
        self._drawn = None if setup.uneven is None else Drawn(setup.uneven, seed)
        self._in_flight: deque[_Sent] = deque()
        self._answers: dict[str, Answer] = {}
        self._params: dict[int, SamplingParams] = {}  # by the tokens of an answer
        self._owed = 0.0  # seconds that the next step takes longer
        self._disturbed_until = 0.0
        self._pace = 0.0  # seconds of the latest step

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def params(self, output: int) -> SamplingParams:
        """The parameters of an answer of so many tokens."""
        found = self._params.get(output)
        if found is None:
            found = self._params[output] = SamplingParams(max_tokens=output, ignore_eos=True)
        return found

    def add(self, answer: Answer) -> None:
        """Queue a request. Between steps."""
        limits, asked = self.setup.limits, answer.asked
        block = limits.block_size if limits.enable_prefix_caching else None
        sequence = asked.sequence(self.params(asked.output), block)
        if self._below is not None:
            keys = sequence.table.keys[: (asked.prompt - 1) // limits.block_size]
            answer.below = self._below.find(keys) * limits.block_size
        self.add_sequence(sequence, answer)

    def add_sequence(self, sequence: SequenceState, answer: Answer) -> None:
        self._answers[sequence.request_id] = answer
        self.scheduler.add(sequence)
        self.steady_until = 0.0

    def abort(self, request_id: str) -> None:
        """Forget a request. Between steps."""
        self.scheduler.abort(request_id)
        self._answers.pop(request_id, None)
        self.steady_until = 0.0

    def spend(self, seconds: float) -> None:
        """Do something else between two steps."""
        self.at += seconds

    def disturb(self, at: float) -> None:
        """Let the steps that run lose what a request takes that is sent at a time. Those that come
        while an earlier one is still on its way disturb them together."""
        end = at + self.setup.front.lost_request
        if self.has_work:
            self._owed += max(end - max(at, self._disturbed_until), 0.0)
            self.steady_until = 0.0
        self._disturbed_until = max(self._disturbed_until, end)

    def idle_until(self, at: float) -> None:
        """Have nothing to do until a time."""
        self._owed = 0.0
        self.at = max(self.at, at)

    def run(self, stop: float) -> bool:
        """Run a round of the loop, or as many as begin before ``stop`` where nothing else happens
        meanwhile; returns whether a request has ended."""
        ended = self._steady(stop)
        if ended is None:
            ended = any(update.finish_reason is not None for update in self.one())
        return ended

    def _steady(self, stop: float) -> bool | None:
        """Take steps that only decode and begin before ``stop``; returns whether the last ended a
        request, or None if there are no such steps."""
        scheduler, work = self.scheduler, self.work
        expected = 2 * (stop - self.at) / self._pace + 2 if self._pace > 0 else NEVER
        limit = _MOST_STEPS if expected > _MOST_STEPS else int(expected)
        if self.setup.stages.depth > 1:
            return None
        count = scheduler.steady_steps(limit)
        if count < 2:
            return None
        running = scheduler.running
        answers = [self._answers[each.request_id] for each in running]
        if any(each.first_s is None for each in answers):
            return None
        number, beside = len(running), self._crowded()
        clock = self._flight.clock(beside)
        lens = [len(each.token_ids) for each in running]
        reads = decode_reads(clock.windows, lens, count)
        front = self.setup.front
        alone = clock.decoding(number, reads)
        self._pace = front.whole(alone[0], number)
        alone[0] += self._flight.behind(number, beside)
        if self._drawn is not None:
            alone = self._drawn.each(alone)
        seconds = [front.whole(each, number) for each in alone]
        seconds[0] += self._owed
        self._owed = 0.0
        times = list(accumulate(seconds, initial=self.at))
        self.steady_until = times[-2]
        taken = count if times[-2] < stop else bisect_left(times, stop)
        before = scheduler.cache.num_used_blocks
        ended = scheduler.decode_steadily(taken, TOKEN)
        ends = times[1 : taken + 1]
        self._count_work(taken, number, ends[-1] - self.at, before)
        work.most_rows = max(work.most_rows, number)
        work.longest = max(work.longest, max(lens) + taken)
        self.at = ends[-1]
        if not ended:
            self._receiver.brought_steadily(ends, answers)
            return False
        if taken > 1:
            self._receiver.brought_steadily(ends[:-1], answers)
        self._bring(answers, [self._answers.pop(each.request_id) for each in ended])
        return True

    def one(self) -> list[SequenceUpdate]:
        """Run one round of the loop; returns what the step brings that it takes in."""
        used = self.scheduler.cache.num_used_blocks
        step = self.scheduler.schedule()
        if step is not None:
            self._send(step, used)
            if len(self._in_flight) < self.setup.stages.depth:
                return []
        if not self._in_flight:
            raise RuntimeError("requests are open, and there is no step for them")
        return self._take_in(self._in_flight.popleft())

    def _send(self, step: ScheduledStep, used: int) -> None:
        shape = self._shape(step)
        beside = bool(self._in_flight) or self._crowded()
        ready = self._flight.send(self.at, shape, self.setup.front.slower, beside)
        self._in_flight.append(_Sent(step, shape, ready, used))
        if self.setup.stages.depth > 1:
            self.scheduler.submitted(step)

    def _take_in(self, sent: _Sent) -> list[SequenceUpdate]:
        step, began = sent.step, self.at
        number = len(step.sequences)
        beside = bool(self._in_flight) or self._crowded()
        alone = self._flight.finish(sent.shape, beside)
        if self._drawn is not None:
            alone = self._drawn.one(alone)
        seconds = self.setup.front.whole(alone, number)
        self.at = max(self.at, sent.ready) + seconds + self._owed
        self._owed = 0.0
        self._pace = self.at - began
        updates = self.scheduler.update(step, [[TOKEN]] * len(step.samples))
        answers, ended = [], []
        for each in step.samples:
            answer = self._answers[each.request_id]
            answers.append(answer)
            if answer.first_s is None:
                answer.cached = each.num_cached_tokens
            if each.finish_reason is not None:
                ended.append(answer)
                del self._answers[each.request_id]
        self._bring(answers, ended)
        self._count_work(1, number, self.at - began, sent.used)
        return updates

    def _bring(self, answers: list[Answer], ended: list[Answer]) -> None:
        self._receiver.brought(self.at, answers, ended)
        self.steady_until = 0.0

    def _shape(self, step: ScheduledStep) -> StepShape:
        windows, work = self.setup.stages.windows, self.work
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
        return StepShape(
            step.num_tokens, len(step.samples), number, chunks, tuple(reads), tuple(pairs)
        )

    def _count_work(self, steps: int, sequences: int, seconds: float, used: int) -> None:
        """Count steps that began with so many blocks in use."""
        work = self.work
        work.steps += steps
        work.rows += steps * sequences
        work.busy_s += seconds
        work.running_s += sequences * seconds
        work.used_s += (used + self.scheduler.cache.num_used_blocks) / 2 * seconds
        work.most_sequences = max(work.most_sequences, sequences)
