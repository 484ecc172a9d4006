"""An engine on a simulated clock: what steps and drafts take, and whether they are accepted, is
given, and how many tokens come of it in how many seconds is known without any noise but its own."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock.interface.messages import EngineRequest
from penstock.sampling.params import SamplingParams
from penstock.scheduler.draft import Draft
from penstock.scheduler.output import ScheduledSequence, ScheduledStep
from penstock.scheduler.sequence import SequenceState, Slot, make_sequences
from penstock.speculate.draft import Wanted
from penstock.speculate.speculation import Speculation


@dataclass
class Costs:
    """Seconds."""

    step: Callable[[int], float]
    """Seconds of a step, by its rows."""
    drafted: Callable[[int], float]
    """Seconds of a drafted token for so many sequences, of all together."""
    read: float = 0.0
    """Seconds of a token that is read before drafts are made."""
    disturbed: float = 0.0
    """What a step takes longer while drafts are made, as a share of it, and ``lingers`` steps from
    there."""
    noise: float = 0.0
    """Standard deviation of a step's time, as a share of it."""
    lingers: int = 2
    first_read: float = 0.0
    """Seconds that the very first reading takes besides: the weights are cold."""
    held_up: int = 0
    """Every so manieth step takes ten times as long, since others have the processor; 0: none."""


class SimulatedEngine:
    """Sequences that decode without end, or to ``length`` tokens if it is given.

    A draft's tokens are accepted with probability ``alpha``, one after the other; of the sequences
    whose place in the batch is odd, with probability ``odd_alpha`` if that is set.
    """

    def __init__(
        self,
        costs: Costs,
        alpha: float,
        batch: int,
        num_tokens: int = 5,
        length: int = 0,
        seed: int = 1,
    ) -> None:
        self.costs, self.alpha, self.batch, self.num_tokens = costs, alpha, batch, num_tokens
        self.odd_alpha: float | None = None
        self.length = length
        self.prompt_rows = 0  # of others, in each step
        self.now = 0.0
        self.tokens = 0
        self.drafted = 0
        self.random = random.Random(seed)
        self.proposer = _Proposer(self)
        self.speculation = Speculation(
            self.proposer, num_tokens, adaptive=True, clock=lambda: self.now
        )
        self._since_drafts = costs.lingers
        self._steps = 0
        self.sequences = [self._sequence() for _ in range(batch)]

    def run(self, steps: int, running: Iterable[SequenceState] | None = None) -> float:
        """Tokens a second of so many steps. ``running``: what speculation is shown."""
        began, tokens = self.now, self.tokens
        for _ in range(steps):
            self._step(self.sequences if running is None else running)
        return (self.tokens - tokens) / (self.now - began)

    def grow(self, batch: int) -> None:
        """More sequences come; the step that reads them passes."""
        begun = list(range(self.batch, batch))
        self.sequences += [self._sequence() for _ in begun]
        self.batch = batch
        self._read(begun)

    def arrive(self) -> None:
        """Another sequence takes the place of the first; the step that reads it passes."""
        self.sequences[0] = self._sequence()
        self._read([0])

    def plain(self) -> float:
        """Tokens a second without drafts."""
        return self.batch / self.costs.step(self.batch)

    def best(self) -> float:
        """Tokens a second with the best constant length, which may be 0."""
        batch = self.batch
        alphas = [self._alpha(i) for i in range(batch)]
        rates = [self.plain()]
        for k in range(1, self.num_tokens + 1):
            seconds = self.costs.step(batch * (k + 1)) * (1.0 + self.costs.disturbed)
            tokens = sum(alpha**i for alpha in alphas for i in range(k + 1))
            rates.append(tokens / (seconds + k * self.costs.drafted(batch)))
        return max(rates)

    def _alpha(self, i: int) -> float:
        return self.odd_alpha if i % 2 and self.odd_alpha is not None else self.alpha

    def _sequence(self) -> SequenceState:
        request = EngineRequest(request_id="a", prompt_token_ids=[1] * 100, params=SamplingParams())
        made = make_sequences(request, 0)
        made.max_total_tokens = 101 + (
            self.random.randrange(self.length // 2, self.length) if self.length else 1_000_000
        )
        made.append([1])
        made.num_computed = 100
        return made

    def _read(self, begun: list[int]) -> None:
        """A step that reads the prompts of some sequences, beside which the others decode."""
        self.speculation.drafts([], 0)
        listed = []
        for i, s in enumerate(self.sequences):
            count = 100 if i in begun else 1
            listed.append(ScheduledSequence(s, s.num_computed, count, 1, (s,)))
        rows = sum(each.num_tokens for each in listed)
        numbers = list(range(len(listed)))
        step = ScheduledStep(listed, self.sequences, numbers, [], rows, len(listed))
        self.speculation.verified(step, [[1]] * len(listed))

    def _step(self, running: Iterable[SequenceState]) -> None:
        drafts = self.speculation.drafts(running, 10_000)
        listed, rows = [], 0
        for s in self.sequences:
            draft = drafts.get(s)
            count = 1 + (len(draft) if draft is not None else 0)
            listed.append(ScheduledSequence(s, s.num_computed, count, count, (s,), draft=draft))
            rows += count
        drafted, others = rows - len(listed), self.prompt_rows
        if others:
            listed.append(ScheduledSequence(self._sequence(), 0, others, 0, ()))
        self._since_drafts = 0 if drafted else self._since_drafts + 1
        numbers = list(range(len(self.sequences)))
        step = ScheduledStep(
            listed, self.sequences, numbers, [], rows + others, rows, num_drafted=drafted
        )
        seconds = self.costs.step(rows + others) * (
            1.0 + self.random.gauss(0.0, 1.0) * self.costs.noise
        )
        if self._since_drafts < self.costs.lingers:
            seconds *= 1.0 + self.costs.disturbed
        self._steps += 1
        if self.costs.held_up and self._steps % self.costs.held_up == 0:
            seconds *= 10.0
        self.now += seconds
        self.drafted += drafted
        tokens = []
        for i, each in enumerate(listed[: len(self.sequences)]):
            accepted, alpha = 0, self._alpha(i)
            while accepted < each.num_tokens - 1 and self.random.random() < alpha:
                accepted += 1
            tokens.append([1] * (accepted + 1))
            self.tokens += accepted + 1
            each.sequence.append(tokens[-1])
            each.sequence.num_computed += accepted + 1
        self.speculation.verified(step, tokens)
        ended = [i for i, s in enumerate(self.sequences) if s.finish_reason is not None]
        for i in ended:
            self.sequences[i] = self._sequence()
        if ended:
            self._read(ended)


class _Proposer:
    kinds = 1
    cheap = False
    steady = True

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine
        self._read: Slot[int] = Slot()
        self._has_read = False

    def propose(self, wanted: Sequence[Wanted]) -> list[Draft | None]:
        engine = self._engine
        unread = 0
        for sequence, _ in wanted:
            new = sequence.num_tokens - (self._read.get(sequence) or 0)
            unread += new if new > 8 else 0
            self._read.set(sequence, sequence.num_tokens)
        self.steady = not unread
        if unread and not self._has_read:
            engine.now += engine.costs.first_read
            self._has_read = True
        longest = max(most for _, most in wanted)
        engine.now += unread * engine.costs.read + longest * engine.costs.drafted(len(wanted))
        return [Draft(array("i", [1] * most)) for _, most in wanted]

    def reset(self) -> None: ...

    def check_integrity(self) -> None: ...

    def close(self) -> None: ...
