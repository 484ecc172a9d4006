"""Chooses how many tokens to draft for each sequence, by what was measured."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.scheduler.sequence import Slot
from penstock.speculate.acceptance import Acceptance
from penstock.speculate.control_parameters import DEFAULTS, ControlParameters
from penstock.speculate.loss_budget import LossBudget
from penstock.speculate.step_cost_model import MAX_BITS, DraftTiming, StepCostModel

if TYPE_CHECKING:
    from penstock.scheduler.sequence import SequenceState


class Offer(NamedTuple):
    """A sequence that can have a draft of at most ``most`` tokens, of a kind of drafts."""

    sequence: SequenceState
    kind: int
    most: int


class Controller:
    """Chooses the lengths of drafts that give the most tokens a second. Not thread-safe.

    With B sequences in a step, drafts of K tokens for D of them give B + D * E(K) tokens, E(K)
    being the number of drafted tokens that are expected to be accepted, in a time of c(K) plain
    steps. So the speed-up is (B + D * E(K)) / (B * c(K)), which for one sequence and a constant
    acceptance is that of Leviathan et al., "Fast inference from transformers via speculative
    decoding", 2023, theorem 3.8. Three models, all fed by what the engine measures, give its terms
    and bound what they get wrong:

    - :class:`~penstock.speculate.acceptance.Acceptance` estimates E for each sequence;
    - :class:`~penstock.speculate.step_cost_model.StepCostModel` estimates c;
    - :class:`~penstock.speculate.loss_budget.LossBudget` lets there be drafts only while they have
      lost little. There is one for each size of batch, to a factor of two.

    For each sequence, the length with the largest speed-up is chosen, the others being taken to be
    like it, or none if that is too small. A model that drafts must read a sequence first, which
    must pay, too. What is not believed to pay is explored in two ways: in *trials*, the sequences
    that came last get a draft of at least one token each; and beside sequences that have drafts,
    the one that has gone without for longest gets a *look*, a draft of a single token.
    What was known of acceptance counts less in a trial, and after a look that was a success.

    Choices may depend on clocks, since the output is the same whatever is drafted
    (:mod:`penstock.speculate.verify`).
    """

    def __init__(
        self,
        kinds: int,
        num_tokens: int,
        trees: Collection[int] = (),
        reads: bool = True,
        parameters: ControlParameters = DEFAULTS,
    ) -> None:
        """Control drafts of at most ``num_tokens`` tokens.

        Drafts in the kinds listed in ``trees`` are trees, whose lengths count ranks. ``reads``
        tells whether the proposer must read all of a sequence before it drafts, which takes time.
        """
        self._kinds = kinds
        self._num_tokens = num_tokens
        self._reads = reads
        self._parameters = parameters
        self._common = Acceptance(kinds, num_tokens, trees=trees, parameters=parameters)
        self._records: Slot[Acceptance] = Slot()
        self._costs = StepCostModel(num_tokens, reads, parameters)
        # By the bits of the number of sequences.
        self._budgets = [LossBudget(bits == 1, parameters) for bits in range(MAX_BITS)]
        self._budget = self._budget_of(1)  # that of the last step
        self._num_to_read = 0  # tokens that the drafts of this step must read
        self._since_look = 0  # steps
        self._num_accepted = 0  # drafted tokens of this step

    @property
    def drafts(self) -> bool:
        """Whether the next step may have drafts, if its batch is like the last one's."""
        return self._budget.is_open and not self._costs.timing

    def lengths(self, offers: Sequence[Offer], decoding: int) -> list[int]:
        """Return the length of each draft to make, or the part of it to verify; 0 for none.

        ``decoding`` is the number of sequences in the step, with or without an offer.
        """
        budget = self._budget = self._budget_of(decoding)
        lengths = [0] * len(offers)
        self._num_to_read = 0
        if not offers or not self.drafts:
            return lengths
        if not self._costs.plain.knows(decoding):
            self._costs.time_plain()
            return lengths
        first = 0
        if budget.trial_steps:
            first = max(len(offers) - self._parameters.trial_sequences, 0)
        drafting = len(offers) - first
        costs = self._costs.relative_costs(decoding, drafting)
        step = _Step(decoding, drafting, costs, self._parameters.least_speed_up)
        records = [self._record(offer.sequence) for offer in offers]
        without = []
        for i in range(first, len(offers)):
            lengths[i] = self._best(offers[i], records[i], step)
            if lengths[i]:
                self._has_draft(offers[i], records[i])
            else:
                records[i].steps_skipped += 1
                without.append(i)
        for i in without if budget.trial_steps else self._look(records, without):
            unread = self._num_to_read + self._unread(offers[i], records[i])
            seconds = unread * self._costs.seconds_per_token_read
            if seconds <= budget.balance * self._costs.plain.seconds(decoding):
                lengths[i] = 1
                self._has_draft(offers[i], records[i])
                records[i].is_look = not budget.trial_steps
        if self._reads and not any(lengths):
            budget.idle()
        return lengths

    def verified(
        self, sequence: SequenceState, kind: int, drafted: int, accepted: Collection[int]
    ) -> None:
        """Record which of a draft's first ``drafted`` positions, or ranks, were accepted.

        After a look that was a success, the past counts less.
        """
        record = self._record(sequence)
        if record.is_look and accepted:
            record.forget(self._parameters.exploration_discount)
        record.is_look = False
        self._num_accepted += len(accepted)
        record.add(kind, drafted, accepted)

    def plain_step(self, decoding: int, steps: int, seconds: float, asking: float) -> int:
        """Record a step of ``decoding`` sequences without drafts, which took ``seconds``.

        It is the last of ``steps`` such steps, of which the others were not measured. ``asking`` is
        the time for which a proposer was asked in vain. Returns how many steps need not be looked
        at now, as there will be no drafts in them.
        """
        budget = self._budget = self._budget_of(decoding)
        self._since_look += steps
        undisturbed = self._costs.plain_step(decoding, steps, seconds)
        usual = self._costs.plain.seconds(decoding)
        lost = asking
        if not undisturbed:  # earlier drafts make it slower, or a wrong belief seems to
            lost += min(max(seconds - usual, -usual), usual)
        if budget.plain_step(steps, lost / usual if usual else 0.0):
            self._common.forget(self._parameters.exploration_discount)
            self._costs.doubt()
        return self._parameters.rest_steps if undisturbed and not budget.is_open else 0

    def prefill_step(self, decoding: int, tokens: int) -> None:
        """Record a step that read prompts: it had ``decoding`` sequences and ``tokens`` rows."""
        self._costs.prefill_step()
        plain = self._costs.plain.seconds(decoding)
        reading = tokens * self._costs.seconds_per_token_read
        self._budget.arrival(reading / plain if plain else 0.0)

    def draft_step(
        self, timing: DraftTiming, decoding: int, drafted: int, seconds: float | None
    ) -> None:
        """Record a step of ``decoding`` sequences that verified ``drafted`` tokens.

        ``seconds`` is what the step itself took, or None if it had rows of prompts, too.
        """
        budget = self._budget = self._budget_of(decoding)
        self._since_look += 1
        plain = self._costs.plain.seconds(decoding)
        verifying = self._costs.verified(decoding, drafted, seconds)
        drafting, reading = self._costs.drafted(timing, self._num_to_read, plain)
        gained, self._num_accepted = self._num_accepted / decoding, 0
        if plain:
            budget.draft_step(1.0 + gained - (verifying + drafting) / plain, reading / plain)
            if budget.is_low:
                self._costs.doubt_plain(decoding)  # before drafts are given up for its sake

    def _best(self, offer: Offer, record: Acceptance, step: _Step) -> int:
        """Return the length with the largest speed-up, or 0 if none pays."""
        sequence, parameters = offer.sequence, self._parameters
        expected = record.expected(offer.kind)
        best, speed_up = step.best(expected, offer.most)
        if best and step.drafting > 1:
            usual = step.usual.get(offer.kind)
            if usual is None:
                of_all = self._common.expected(offer.kind)
                usual = step.usual[offer.kind] = step.best(of_all, self._num_tokens)[0]
            if usual != best and 0 < usual <= offer.most:
                other = step.speed_up(expected, usual)
                if other > max(speed_up / parameters.agreement, parameters.least_speed_up):
                    best, speed_up = usual, other
        unread = self._unread(offer, record) if best else 0
        if unread:
            left = sequence.max_total_tokens - len(sequence.token_ids)
            steps = min(left, parameters.horizon)
            saved = (speed_up - 1.0) * self._costs.plain.seconds(step.decoding) / step.decoding
            if unread * self._costs.seconds_per_token_read > saved * steps:
                return 0
        return best

    def _look(self, records: list[Acceptance], without: list[int]) -> list[int]:
        """Return which of the sequences ``without`` drafts to look at in this step, one or none."""
        interval = self._parameters.look_interval
        if self._since_look < interval or self._budget.balance < 1.0 or not without:
            return []
        longest = max(without, key=lambda i: records[i].steps_skipped)
        if records[longest].steps_skipped < interval:
            return []
        self._since_look = 0
        return [longest]

    def _has_draft(self, offer: Offer, record: Acceptance) -> None:
        self._num_to_read += self._unread(offer, record)
        record.num_read = len(offer.sequence.token_ids)
        record.steps_skipped = 0

    def _unread(self, offer: Offer, record: Acceptance) -> int:
        return self._costs.to_read(len(offer.sequence.token_ids) - record.num_read)

    def _budget_of(self, decoding: int) -> LossBudget:
        return self._budgets[decoding.bit_length()]

    def _record(self, sequence: SequenceState) -> Acceptance:
        record = self._records.get(sequence)
        if record is None:
            record = Acceptance(self._kinds, self._num_tokens, self._common)
            self._records.set(sequence, record)
        return record


class _Step:
    """The expected speed-ups of one step by lengths of drafts."""

    __slots__ = ("_costs", "_least", "decoding", "drafting", "usual")

    def __init__(self, decoding: int, drafting: int, costs: list[float], least: float) -> None:
        self.decoding = decoding
        self.drafting = drafting
        self.usual: dict[int, int] = {}
        """The draft length that is best on average, for each kind of drafts."""
        self._costs = [decoding * cost for cost in costs]
        self._least = least

    def best(self, expected: list[float], most: int) -> tuple[int, float]:
        """Return the length up to ``most`` with the largest speed-up, and that; or 0 if none pays.

        ``expected`` tells how many tokens are accepted of drafts of 1, 2, ... tokens.
        """
        best, speed_up = 0, self._least
        decoding, drafting = self.decoding, self.drafting
        for i, cost in enumerate(self._costs[:most]):
            tokens = decoding + drafting * expected[i]
            if tokens > speed_up * cost:
                best, speed_up = i + 1, tokens / cost
        return best, speed_up

    def speed_up(self, expected: list[float], length: int) -> float:
        """Return how many times as fast drafts of ``length`` tokens are as none."""
        return (self.decoding + self.drafting * expected[length - 1]) / self._costs[length - 1]
