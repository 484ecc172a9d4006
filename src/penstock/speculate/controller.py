"""Chooses how many tokens to draft for each sequence, by what was measured."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, NamedTuple

from penstock.speculate.acceptance import Acceptance
from penstock.speculate.control_parameters import DEFAULTS, ControlParameters
from penstock.speculate.loss_budget import LossBudget
from penstock.speculate.step_cost_model import DraftTiming, StepCostModel

if TYPE_CHECKING:
    from penstock.engine.request import Sequence


class Offer(NamedTuple):
    """A sequence that can have a draft of at most ``most`` tokens, of a group of drafts."""

    sequence: Sequence
    group: int
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
        groups: int,
        num_tokens: int,
        trees: Collection[int] = (),
        reads: bool = True,
        parameters: ControlParameters = DEFAULTS,
    ) -> None:
        """Control drafts of at most ``num_tokens`` tokens.

        Drafts in the groups listed in ``trees`` are trees, whose lengths count ranks. ``reads``
        tells whether the proposer must read all of a sequence before it drafts, which takes time.
        """
        self._groups = groups
        self._num_tokens = num_tokens
        self._reads = reads
        self._parameters = parameters
        self._common = Acceptance(groups, num_tokens, trees=trees, parameters=parameters)
        self._costs = StepCostModel(num_tokens, reads, parameters)
        self._budgets: dict[int, LossBudget] = {}  # by the bits of the number of sequences
        self._budget = self._budget_of(1)  # that of the last step
        self._num_to_read = 0  # tokens that the drafts of this step must read
        self._since_look = 0  # steps
        self._num_accepted = 0  # drafted tokens of this step

    @property
    def drafts(self) -> bool:
        """Whether the next step may have drafts, if its batch is like the last one's."""
        return self._budget.is_open and not self._costs.timing

    def lengths(self, offers: Seq[Offer], decoding: int) -> list[int]:
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
        step = _Step(decoding, drafting, self._costs.relative_costs(decoding, drafting))
        without = []
        for i in range(first, len(offers)):
            lengths[i] = self._best(offers[i], step)
            if lengths[i]:
                self._drafts_for(offers[i])
            else:
                self._record(offers[i].sequence).steps_skipped += 1
                without.append(i)
        for i in without if budget.trial_steps else self._look(offers, without):
            if self._can_pay_reading(offers[i], decoding):
                lengths[i] = 1
                self._drafts_for(offers[i])
        if self._reads and not any(lengths):
            budget.idle()
        return lengths

    def verified(self, sequence: Sequence, group: int, drafted: int, accepted: int) -> None:
        """Record that the first ``accepted`` tokens of a chain of ``drafted`` were accepted."""
        self._num_accepted += accepted
        self._looked_at(sequence, bool(accepted)).add(group, drafted, accepted)

    def tree_verified(
        self, sequence: Sequence, group: int, drafted: int, accepted: Collection[int]
    ) -> None:
        """Record which of a tree's first ``drafted`` ranks were on the accepted path."""
        self._num_accepted += len(accepted)
        self._looked_at(sequence, bool(accepted)).add_tree(group, drafted, accepted)

    def plain_step(self, decoding: int, steps: int, seconds: float, asking: float) -> int:
        """Record a step of ``decoding`` sequences without drafts, which took ``seconds``.

        It is the last of ``steps`` such steps, of which the others were not measured. ``asking`` is
        the time for which a proposer was asked in vain. Returns how many steps need not be looked
        at now, as there will be no drafts in them.
        """
        budget = self._budget = self._budget_of(decoding)
        self._since_look += steps
        settled = self._costs.plain_step(decoding, steps, seconds)
        usual = self._costs.plain.seconds(decoding)
        lost = asking
        if not settled:  # earlier drafts make it slower, or a wrong belief seems to
            lost += min(max(seconds - usual, -usual), usual)
        if budget.plain_step(steps, lost / usual if usual else 0.0):
            self._common.forget(self._parameters.exploration_discount)
            self._costs.doubt()
        return self._parameters.rest_steps if settled and not budget.is_open else 0

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
            if budget.balance < self._parameters.reserve / 2:
                self._costs.doubt_plain(decoding)  # before drafts are given up for its sake

    def _best(self, offer: Offer, step: _Step) -> int:
        """Return the length with the largest speed-up, or 0 if none pays."""
        sequence, parameters = offer.sequence, self._parameters
        expected = self._record(sequence).expected(offer.group)
        best, speed_up = step.best(expected, offer.most, parameters.least_speed_up)
        if best and step.drafting > 1:
            usual = step.usual.get(offer.group)
            if usual is None:
                of_all = self._common.expected(offer.group)
                usual = step.best(of_all, self._num_tokens, parameters.least_speed_up)[0]
                step.usual[offer.group] = usual
            if 0 < usual <= offer.most:
                other = step.speed_up(expected, usual)
                if other * parameters.agreement > speed_up:
                    best, speed_up = usual, other
        unread = self._unread(offer)
        if best and unread:
            left = sequence.max_total_tokens - len(sequence.token_ids)
            steps = min(left, parameters.horizon)
            plain = self._costs.plain.seconds(step.decoding) / step.decoding
            if unread * self._costs.seconds_per_token_read > (speed_up - 1.0) * plain * steps:
                return 0
        return best

    def _look(self, offers: Seq[Offer], without: list[int]) -> list[int]:
        """Return the index of the sequence to look at in this step, if there is one."""
        interval = self._parameters.look_interval
        if self._since_look < interval or self._budget.balance < 1.0 or not without:
            return []
        skipped = [self._record(offers[i].sequence).steps_skipped for i in without]
        longest = max(skipped)
        if longest < interval:
            return []
        self._since_look = 0
        look = without[skipped.index(longest)]
        self._record(offers[look].sequence).is_look = True
        return [look]

    def _looked_at(self, sequence: Sequence, accepted: bool) -> Acceptance:
        """Return the sequence's record; after a look that was a success, the past counts less."""
        record = self._record(sequence)
        if record.is_look and accepted:
            record.forget(self._parameters.exploration_discount)
        record.is_look = False
        return record

    def _can_pay_reading(self, offer: Offer, decoding: int) -> bool:
        unread = self._unread(offer)
        seconds = (self._num_to_read + unread) * self._costs.seconds_per_token_read
        return not unread or seconds <= self._budget.balance * self._costs.plain.seconds(decoding)

    def _drafts_for(self, offer: Offer) -> None:
        self._num_to_read += self._unread(offer)
        record = self._record(offer.sequence)
        record.steps_skipped = 0
        record.num_read = len(offer.sequence.token_ids)

    def _unread(self, offer: Offer) -> int:
        record = self._record(offer.sequence)
        return self._costs.to_read(len(offer.sequence.token_ids) - record.num_read)

    def _budget_of(self, decoding: int) -> LossBudget:
        width = decoding.bit_length()
        budget = self._budgets.get(width)
        if budget is None:
            budget = self._budgets[width] = LossBudget(width == 1, self._parameters)
        return budget

    def _record(self, sequence: Sequence) -> Acceptance:
        record = sequence.acceptance
        if record is None:
            record = Acceptance(self._groups, self._num_tokens, self._common)
            sequence.acceptance = record
        assert isinstance(record, Acceptance)
        return record


class _Step:
    """What drafts of each length would cost in a step, and which length is best on average."""

    __slots__ = ("_costs", "decoding", "drafting", "usual")

    def __init__(self, decoding: int, drafting: int, relative_costs: list[float]) -> None:
        self.decoding = decoding
        self.drafting = drafting
        self.usual: dict[int, int] = {}  # by group
        self._costs = [decoding * cost for cost in relative_costs]

    def best(self, expected: list[float], most: int, least: float) -> tuple[int, float]:
        """Return the length up to ``most`` with the largest speed-up, and that, if over ``least``.

        ``expected`` is how many tokens are accepted of drafts of each length. Else (0, ``least``).
        """
        best, speed_up = 0, least
        for length in range(1, min(most, len(self._costs)) + 1):
            tokens, cost = (
                self.decoding + self.drafting * expected[length - 1],
                self._costs[length - 1],
            )
            if tokens > speed_up * cost:
                best, speed_up = length, tokens / cost
        return best, speed_up

    def speed_up(self, expected: list[float], length: int) -> float:
        """Return how many times as fast drafts of ``length`` tokens are as none."""
        return (self.decoding + self.drafting * expected[length - 1]) / self._costs[length - 1]
