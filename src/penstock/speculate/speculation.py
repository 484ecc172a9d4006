"""The engine's interface to speculation: drafts before a step, and their outcome after it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
from numpy.typing import NDArray

from penstock.scheduler.draft import Draft
from penstock.scheduler.output import ScheduledStep
from penstock.speculate.controller import Controller, Offer
from penstock.speculate.draft import HiddenReader, Proposer, Wanted
from penstock.speculate.figures import Figures
from penstock.speculate.prediction import PREDICTED, NoProposer, PredictedText, Predictions
from penstock.speculate.step_cost_model import DraftTiming
from penstock.speculate.typical import Typical

if TYPE_CHECKING:
    from penstock.scheduler.sequence import SequenceState


_IDLE, _REST = 16, 3
"""A cheap proposer that had no draft for ``_IDLE`` steps rests for ``_REST`` steps each time that
it was asked in vain. Asking takes 10 us for one sequence and 30 us for 32, and a step of a small
model some hundred. Where steps overlap, asking costs the overlap of one."""


class _Begun(msgspec.Struct, frozen=True, gc=False):
    """What was done before a step."""

    at: float
    """When its drafts were there, by the clock; of a step that overlaps, when it was scheduled."""
    asking: float = 0.0
    """Seconds spent on asking for drafts."""
    timing: DraftTiming | None = None
    """The time that its drafts took to make; None if it has none."""
    rests: bool = False
    """Whether it is one in which nobody is asked."""


class Speculation:
    """Asks a proposer for drafts for all decoding sequences, and measures what they gain.

    A sequence whose client predicts its output gets its drafts of that while they are right, and
    else of the proposer. They cost nothing to make and bound what they lose themselves, so that
    no controller decides on them, nor learns of steps that have them.

    Before each step either :meth:`drafts` is called, with no other step in flight, or :meth:`skip`.
    A step may be skipped while another is in flight, whose tokens are not known, if
    :meth:`may_draft` says that there would be no drafts anyway. After each step come
    :meth:`verified` and :meth:`observe`, in the order of the steps.
    """

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
        self._silent = isinstance(proposer, NoProposer)
        self._predictions: Predictions | None = None  # none until there is one
        self._reader = proposer if isinstance(proposer, HiddenReader) else None
        self._num_tokens = num_tokens
        trees = () if self._reader is None else self._reader.trees
        self._controller: Controller | None = None
        if adaptive:
            self._controller = Controller(
                proposer.kinds, num_tokens, trees, reads=not proposer.cheap
            )
        self._clock = clock
        self._begun: deque[_Begun] = deque()  # of the step in flight, and of the next
        self._ended = 0.0  # when the last step was taken in behind which another ran
        self._idle = 0  # steps since the last one with a draft
        self._rest = 0  # steps to come in which nobody is asked
        self._rested = 0  # such steps since the last measured one

    def expect(self, sequence: SequenceState, text: PredictedText, most: int) -> None:
        """Draft for ``sequence``, which has no output yet, of what its client predicts, at most
        ``most`` tokens a step."""
        if self._predictions is None:
            self._predictions = Predictions()
        self._predictions.expect(sequence, text, most)

    def may_draft(self, running: Iterable[SequenceState], budget: int) -> bool:
        """Return whether :meth:`drafts` could find any once the step in flight is taken in.

        It sees the sequences as the step in flight leaves them, but for the tokens.
        """
        if self._predictions is not None and self._predictions.may_draft():
            return True
        if self._is_quiet:
            return False
        decoding = False
        for sequence in running:
            known = len(sequence.token_ids)
            left = known - sequence.num_computed
            budget -= left
            # Of one whose last token has no placeholder, nothing is left.
            if left <= 1 and known < sequence.max_total_tokens - 1 and not sequence.is_beam:
                decoding = True
        return decoding and budget > 0

    def skip(self) -> None:
        """Begin a step without asking for drafts."""
        rests = self._rest > 0
        if rests:
            self._rest -= 1
        self._begun.append(_Begun(0.0 if rests else self._clock(), rests=rests))

    def drafts(self, running: Iterable[SequenceState], budget: int) -> dict[SequenceState, Draft]:
        """Return drafts for the next step, which has at most ``budget`` tokens in all."""
        self._begun.clear()  # nothing is in flight
        predicted: dict[SequenceState, Draft] = {}
        if self._predictions is not None:
            predicted = self._predictions.drafts()
        if self._silent or (self._controller is not None and self._is_quiet):
            self.skip()
            return predicted
        return {**self._proposed(running, budget, predicted), **predicted}

    @property
    def _is_quiet(self) -> bool:
        """Whether the proposer need not be asked before the next step."""
        if self._silent or self._rest > 0:
            return True
        return self._controller is not None and not self._controller.drafts

    def _proposed(
        self, running: Iterable[SequenceState], budget: int, predicted: Collection[SequenceState]
    ) -> dict[SequenceState, Draft]:
        """Return the proposer's drafts, for all but those that are ``predicted``."""
        controller = self._controller
        began = self._clock()
        decoding, limit = 0, self._num_tokens
        wanted = []
        for sequence in running:
            known = len(sequence.token_ids)
            left = known - sequence.num_computed
            budget -= left
            if left == 1 and known > sequence.num_prompt_tokens:
                decoding += 1
                if sequence.is_beam or sequence in predicted:
                    continue  # what follows a beam is chosen among all beams
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
            offers = [Offer(s, draft.kind, len(draft)) for s, draft in drafts.items()]
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
        now = self._clock()
        seconds, timing = now - began, None
        if drafts:
            self.figures.draft_seconds += seconds
            longest = max(map(len, drafts.values()))
            timing = DraftTiming(len(drafts), longest, seconds, self._proposer.steady)
        self._begun.append(_Begun(now, seconds, timing))
        if self._proposer.cheap and not drafts and self._idle >= _IDLE:
            self._rest = _REST
        return drafts

    def verified(self, step: ScheduledStep, tokens: Sequence[list[int]]) -> None:
        """Record the outcome of a step, in which ``step.samples[i]`` got ``tokens[i]``."""
        self._record(step, tokens, self._begun.popleft())
        if self._begun:  # the next step runs already; its time begins now
            self._ended = self._clock()

    def _record(self, step: ScheduledStep, tokens: Sequence[list[int]], begun: _Begun) -> None:
        controller = self._controller
        drafted = step.num_drafted
        self._rested += begun.rests
        if begun.rests and step.num_tokens == len(step.sequences):
            return
        predicted = 0
        if drafted:
            self.figures.steps += 1
            i = 0
            decoding = 0
            for each in step.sequences:
                decoding += each.num_tokens == 1 or each.draft is not None
                of_client = each.draft is not None and each.draft.kind == PREDICTED
                if each.draft is not None and of_client:
                    predicted += len(each.draft)
                if each.draft is not None and tokens[i]:
                    count, accepted = len(each.draft), len(tokens[i]) - 1
                    self.figures.add(count, each.draft.depth, accepted)
                    if controller is not None and not of_client:
                        self._record_draft(controller, each.sequence, each.draft, tokens[i][:-1])
                i += len(each.samples)
        if controller is None:
            self._idle = 0 if drafted else self._idle + 1
            return
        rows = len(step.sequences) + drafted
        pure = step.num_tokens == rows and not predicted
        if predicted and predicted == drafted:
            self._rest = self._rested = 0
        elif drafted:
            assert begun.timing is not None, "drafts were asked for"
            seconds = self._seconds(begun) if pure else None
            controller.draft_step(begun.timing, decoding, drafted - predicted, seconds)
            self._idle = self._rested = 0
        elif pure:
            seconds = self._seconds(begun)
            steps, self._rested = 1 + self._rested, 0
            self._rest = controller.plain_step(len(step.sequences), steps, seconds, begun.asking)
            self._idle += steps
            if self._proposer.cheap and self._idle > _IDLE:
                self._rest = max(self._rest, _REST)
        else:
            self._rest = 0
            controller.prefill_step(len(step.sequences), step.num_tokens)

    @property
    def follows_tokens(self) -> bool:
        """Whether the proposer is shown every token of a sequence as it comes."""
        return self._reader is not None

    @property
    def reads_all_hidden(self) -> bool:
        """Whether the proposer needs the hidden states of all tokens that the target computes."""
        return self._reader is not None and self._reader.reads_all

    def wants_features(self, step: ScheduledStep) -> bool:
        """Return whether :meth:`observe` should be shown this step, which is about to run."""
        reader = self._reader
        if reader is None:
            return False
        # While there are no drafts, the last features will be replaced before they are used. What
        # is read with a prompt ends the rest.
        return reader.reads_all or not self._rest or step.num_tokens > len(step.sequences)

    def observe(
        self, step: ScheduledStep, tokens: Sequence[list[int]], features: NDArray[Any]
    ) -> None:
        """Show the features of a step (``StepOutcome.features``), in which ``step.samples[i]`` got
        ``tokens[i]``."""
        reader = self._reader
        if reader is not None and (reader.reads_all or not self._rest):
            reader.observe(step, tokens, features)

    def reset(self) -> None:
        """Forget what the proposer kept of earlier requests; what runs is not disturbed.

        What was measured stays: figures, times, and how often drafts were accepted.
        """
        self._proposer.reset()

    def check_integrity(self) -> None:
        """Raise AssertionError if the proposer's state is inconsistent."""
        self._proposer.check_integrity()

    def close(self) -> None:
        """Release the proposer's weights and caches."""
        self._proposer.close()

    def _seconds(self, begun: _Begun) -> float:
        """Return what a step took that is taken in now. What it waited for another does not
        count."""
        return self._clock() - max(begun.at, self._ended)

    def _record_draft(
        self, controller: Controller, sequence: SequenceState, draft: Draft, accepted: Sequence[int]
    ) -> None:
        """Tell the controller which tokens of a draft were accepted."""
        nodes = range(len(accepted)) if draft.parents is None else draft.path(accepted)
        controller.verified(sequence, draft.kind, len(draft), nodes)

    def _propose(self, wanted: list[Wanted]) -> dict[SequenceState, Draft]:
        if not wanted:
            return {}
        proposed = self._proposer.propose(wanted)
        return {
            each.sequence: draft
            for each, draft in zip(wanted, proposed, strict=True)
            if draft is not None
        }
