"""Speculation as the engine's loop sees it: drafts before a step, their outcome after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from time import perf_counter
from typing import TYPE_CHECKING

from penstock.interface.step import StepResult
from penstock.scheduler.draft import Draft
from penstock.scheduler.output import ScheduledStep
from penstock.speculate.controller import Controller, Offer
from penstock.speculate.draft import HiddenReader, Proposer, Wanted
from penstock.speculate.figures import Figures
from penstock.speculate.step_cost_model import DraftTiming
from penstock.speculate.typical import Typical

if TYPE_CHECKING:
    from penstock.scheduler.sequence import Sequence


_IDLE, _REST = 16, 3
"""After ``_IDLE`` steps without a draft, a cheap proposer rests for ``_REST`` steps each time that
it was asked in vain. Asking takes 10 us for one sequence and 30 us for 32, and a step of a small
model some hundred."""


class Speculation:
    """Asks a proposer for drafts for all decoding sequences, and measures what comes of them."""

    def __init__(
        self,
        proposer: Proposer,
        num_tokens: int,
        adaptive: bool = False,
        clock: Callable[[], float] = perf_counter,
        typical: Typical | None = None,
    ) -> None:
        """Use drafts of at most ``num_tokens`` tokens from ``proposer``.

        With ``adaptive``, a controller chooses their lengths by times that ``clock`` gives in
        seconds. ``typical`` is the criterion of typical acceptance; None verifies exactly.
        """
        self.typical = typical
        self.figures = Figures(num_tokens)
        self._proposer = proposer
        self._reader = proposer if isinstance(proposer, HiddenReader) else None
        self._num_tokens = num_tokens
        self._trees = () if self._reader is None else self._reader.trees
        self._controller: Controller | None = None
        if adaptive:
            self._controller = Controller(
                proposer.groups, num_tokens, self._trees, reads=not proposer.cheap
            )
        self._clock = clock
        self._step_began = 0.0
        self._asking = 0.0  # seconds spent on asking for drafts
        self._timing: DraftTiming | None = None  # of this step's drafts, if there are any
        self._idle = 0  # steps since the last one with a draft
        self._rest = 0  # steps to come in which nobody is asked
        self._rested = 0  # such steps since the last measured one
        self._rests = False  # whether this step is one of them

    def drafts(self, running: Iterable[Sequence], budget: int) -> dict[Sequence, Draft]:
        """Return drafts for the next step, which has room for ``budget`` tokens in all."""
        self._rests = self._rest > 0
        if self._rests:
            self._rest -= 1
            self._rested += 1
            return {}
        began = self._step_began = self._clock()
        self._asking, self._timing = 0.0, None
        controller = self._controller
        if controller is not None and not controller.drafts:
            return {}
        decoding, limit = 0, self._num_tokens
        wanted = []
        for sequence in running:
            known = len(sequence.token_ids)
            left = known - sequence.num_computed
            budget -= left
            if left == 1 and known > sequence.num_prompt_tokens:
                decoding += 1
                if sequence.awaits_mask or (sequence.matcher and sequence.matcher.slow):
                    continue  # its masks take longer than the steps that drafts would save
                most = sequence.max_total_tokens - known - 1
                if most > 0:
                    wanted.append(Wanted(sequence, most if most < limit else limit))
        if budget <= 0:
            wanted = []  # prefill fills the step: there is no room for drafts
        if controller is None:
            drafts = self._propose(wanted)
        elif self._proposer.cheap:
            drafts = self._propose(wanted)
            offers = [Offer(s, draft.group, len(draft)) for s, draft in drafts.items()]
            lengths = controller.lengths(offers, decoding)
            drafts = {
                s: draft.cut(length)
                for (s, draft), length in zip(drafts.items(), lengths, strict=True)
                if length
            }
        else:
            lengths = controller.lengths([Offer(s, 0, most) for s, most in wanted], decoding)
            drafts = self._propose(
                [Wanted(s, n) for (s, _), n in zip(wanted, lengths, strict=True) if n]
            )
        self._step_began = self._clock()
        self._asking = seconds = self._step_began - began
        if drafts:
            self.figures.draft_seconds += seconds
            longest = max(map(len, drafts.values()))
            self._timing = DraftTiming(len(drafts), longest, seconds, self._proposer.steady)
        return drafts

    def verified(self, step: ScheduledStep, tokens: Seq[list[int]]) -> None:
        """Record the outcome of a step, in which ``step.samples[i]`` got ``tokens[i]``."""
        controller = self._controller
        drafted = step.num_drafted
        if self._rests and step.num_tokens == len(step.sequences):
            return
        if drafted:
            self.figures.steps += 1
            i = 0
            decoding = 0
            for each in step.sequences:
                decoding += each.num_tokens == 1 or each.draft is not None
                if each.draft is not None and tokens[i]:
                    count, accepted = len(each.draft), len(tokens[i]) - 1
                    self.figures.add(count, each.draft.depth, accepted)
                    if controller is not None:
                        self._record_draft(controller, each.sequence, each.draft, tokens[i][:-1])
                i += len(each.samples)
        if controller is None:
            return
        rows = len(step.sequences) + drafted
        pure = step.num_tokens == rows
        if drafted:
            assert self._timing is not None, "drafts were asked for"
            seconds = self._clock() - self._step_began if pure else None
            controller.draft_step(self._timing, decoding, drafted, seconds)
            self._idle = self._rested = 0
        elif pure:
            seconds = self._clock() - self._step_began
            steps, self._rested = 1 + self._rested, 0
            self._rest = controller.plain_step(len(step.sequences), steps, seconds, self._asking)
            self._idle += steps
            if self._proposer.cheap and self._idle > _IDLE:
                self._rest = max(self._rest, _REST)
        else:
            self._rest = 0
            controller.prefill_step(len(step.sequences), step.num_tokens)

    @property
    def reads_all_hidden(self) -> bool:
        """Whether the proposer needs the hidden states of all tokens that the target computes."""
        return self._reader is not None and self._reader.reads_all

    def observe(self, step: ScheduledStep, tokens: Seq[list[int]], result: StepResult) -> None:
        """Show the hidden states of a step, in which ``step.samples[i]`` got ``tokens[i]``."""
        reader = self._reader
        # While there are no drafts, the last hidden states will be replaced before they are used.
        if reader is not None and (reader.reads_all or not self._rest):
            reader.observe(step, tokens, result)

    def check_integrity(self) -> None:
        """Raise AssertionError if the proposer's state is inconsistent."""
        self._proposer.check_integrity()

    def close(self) -> None:
        """Release the proposer's weights and caches."""
        self._proposer.close()

    def _record_draft(
        self, controller: Controller, sequence: Sequence, draft: Draft, accepted: Seq[int]
    ) -> None:
        """Tell the controller which tokens of a draft were accepted."""
        if draft.group in self._trees:
            nodes = draft.path(accepted)
            controller.tree_verified(sequence, draft.group, len(draft), nodes)
        else:
            controller.verified(sequence, draft.group, len(draft), len(accepted))

    def _propose(self, wanted: list[Wanted]) -> dict[Sequence, Draft]:
        if not wanted:
            return {}
        proposed = self._proposer.propose(wanted)
        return {
            each.sequence: draft
            for each, draft in zip(wanted, proposed, strict=True)
            if draft is not None
        }
