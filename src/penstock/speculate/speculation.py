"""What the engine's loop has to do with speculation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from time import perf_counter
from typing import TYPE_CHECKING

from penstock.engine.scheduled import ScheduledStep
from penstock.engine.step import StepResult
from penstock.speculate.controller import Controller
from penstock.speculate.draft import Draft, HiddenReader, Proposer, Wanted
from penstock.speculate.figures import Figures
from penstock.speculate.told import told_of
from penstock.speculate.typical import Typical

if TYPE_CHECKING:
    from penstock.engine.request import Sequence


_IDLE, _LOOK = 64, 4
"""After so many steps without a draft, cheap proposers are asked in every fourth only: asking takes
8 us for one sequence and 4 for each of many, and steps of a small model some hundred."""
_SETTLED = 2
"""Steps without drafts after which the next such one takes what it takes without speculation."""


class Speculation:
    """Asks ``proposer`` for up to ``num_tokens`` drafts for every sequence that decodes.

    With ``adaptive``, for as many as pay. ``clock`` gives seconds. ``typical`` accepts drafts that
    exact verification may not.
    """

    def __init__(
        self,
        proposer: Proposer,
        num_tokens: int,
        adaptive: bool = False,
        clock: Callable[[], float] = perf_counter,
        typical: Typical | None = None,
    ) -> None:
        self.typical = typical
        self.figures = Figures(num_tokens)
        self._proposer = proposer
        self._reader = proposer if isinstance(proposer, HiddenReader) else None
        self._num_tokens = num_tokens
        self._controller = Controller(proposer.groups, num_tokens) if adaptive else None
        self._clock = clock
        self._step_began = 0.0
        self._plain_steps = 0  # in a row
        self._idle = 0  # steps since the last one with a draft
        self._seldom = adaptive and proposer.cheap

    def drafts(self, running: Iterable[Sequence], budget: int) -> dict[Sequence, Draft]:
        """For the next step, which has room for ``budget`` tokens in all."""
        began = self._step_began = self._clock()
        self._idle += 1
        if self._idle > _IDLE and self._idle % _LOOK and self._seldom:
            return {}
        decoding, limit = 0, self._num_tokens
        wanted = []
        for sequence in running:
            known = len(sequence.token_ids)
            left = known - sequence.num_computed
            budget -= left
            if left == 1 and known > sequence.num_prompt_tokens:
                decoding += 1
                most = sequence.max_total_tokens - known - 1
                if most > 0:
                    wanted.append(Wanted(sequence, most if most < limit else limit))
        drafts: dict[Sequence, Draft] = {}
        controller = self._controller
        if budget <= 0:
            wanted = []  # prefill fills the step: there is no room for drafts
        if controller is not None and not self._proposer.cheap:
            count = len(wanted)
            lengths = (
                Wanted(s, controller.length(s, 0, most, decoding, count)) for s, most in wanted
            )
            wanted = [each for each in lengths if each.most > 0]
        if wanted:
            proposed = self._proposer.propose(wanted)
            for (sequence, _), draft in zip(wanted, proposed, strict=True):
                if draft is not None:
                    drafts[sequence] = draft
        if drafts and controller is not None and self._proposer.cheap:
            drafts = self._cut(controller, drafts, decoding)
        self._step_began = self._clock()
        if drafts:
            self._idle = 0
            seconds = self._step_began - began
            self.figures.draft_seconds += seconds
            if controller is not None and self._proposer.steady:
                longest = max(map(len, drafts.values()))
                controller.drafting_took(len(drafts), longest, seconds)
        return drafts

    def verified(self, step: ScheduledStep, tokens: Seq[list[int]]) -> None:
        """The step was taken in; ``tokens[i]`` were drawn for ``step.samples[i]``."""
        controller = self._controller
        # The first steps without drafts find caches full of what made and verified drafts: 32 rows
        # of the demo model take 3.4 ms then, and 2.5 in a row of such steps.
        self._plain_steps = 0 if step.num_drafted else self._plain_steps + 1
        usual = step.num_drafted or self._plain_steps > _SETTLED
        decoded = step.num_tokens == len(step.sequences) + step.num_drafted
        if controller is not None and usual and decoded:
            controller.step_took(step.num_tokens, self._clock() - self._step_began)
        if not step.num_drafted:
            return
        self.figures.steps += 1
        i = 0
        for each in step.sequences:
            if each.draft is not None and tokens[i]:
                accepted = len(tokens[i]) - 1
                self.figures.add(len(each.draft), each.draft.depth, accepted)
                if controller is not None:
                    controller.verified(each.sequence, each.draft.group, len(each.draft), accepted)
            i += len(each.samples)

    @property
    def reads_all_hidden(self) -> bool:
        """Whether the hidden states of every token that the target computes are wanted."""
        return self._reader is not None and self._reader.reads_all

    def observe(self, step: ScheduledStep, tokens: Seq[list[int]], result: StepResult) -> None:
        """The step was taken in, with ``tokens[i]`` for ``step.samples[i]``."""
        if self._reader is not None:
            self._reader.observe(told_of(step, tokens), result)

    def check_integrity(self) -> None:
        self._proposer.check_integrity()

    def close(self) -> None:
        self._proposer.close()

    def _cut(
        self, controller: Controller, drafts: dict[Sequence, Draft], decoding: int
    ) -> dict[Sequence, Draft]:
        """Of drafts that were made already, what pays."""
        lengths = {
            s: controller.length(s, draft.group, len(draft), decoding, len(drafts))
            for s, draft in drafts.items()
        }
        return {s: draft.cut(lengths[s]) for s, draft in drafts.items() if lengths[s]}
