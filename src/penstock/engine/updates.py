"""What a step was, told to all who want to know: sequences, beams, embeddings, drafts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.engine.beams import BeamGroups
from penstock.engine.constraints import Constraints
from penstock.engine.pooling import Embeddings
from penstock.engine.prompt_logprobs import PromptLogprobsTracker
from penstock.engine.step_runner import Executed
from penstock.interface.logprobs import TokenLogprobs
from penstock.interface.messages import FinishReason, SequenceUpdate
from penstock.sampling.logprobs import OF_THE_REQUEST
from penstock.scheduler.output import ScheduledStep
from penstock.scheduler.scheduler import Scheduler
from penstock.scheduler.sequence import SequenceState, Status

if TYPE_CHECKING:
    from penstock.speculate.speculation import Speculation


class UpdateMaker:
    """Takes in what steps have computed, one after the other: makes updates of it, and tells
    whoever else wants to know."""

    def __init__(
        self,
        scheduler: Scheduler,
        constraints: Constraints,
        beams: BeamGroups,
        prompts: PromptLogprobsTracker,
    ) -> None:
        self._scheduler = scheduler
        self._constraints = constraints
        self._beams = beams
        self._prompts = prompts
        self._embeddings = Embeddings()

    def take_in(
        self, executed: Executed | None, speculation: Speculation | None
    ) -> list[SequenceUpdate]:
        """Tell the sequences, and whoever else wants to know, what came of a step, if one ran;
        returns what is sent of it."""
        if executed is None:
            return []
        step, verified, errors = executed.step, executed.verified, executed.errors
        tokens = verified.tokens
        refused = set()
        for i, message in verified.errors.items():
            tokens[i] = []
            if step.samples[i].status is not Status.FINISHED:  # its id may be another's by now
                request_id, matcher = step.samples[i].request_id, step.samples[i].matcher
                if matcher is not None and matcher.error is not None:
                    message = f"the grammar of this request cannot go on: {matcher.error}"
                    refused.add(request_id)
                elif message in OF_THE_REQUEST:
                    refused.add(request_id)
                errors.setdefault(request_id, message)
        if self._beams.any:  # they get their tokens when all beams of a request have been computed
            for i, sequence in enumerate(step.samples):
                if sequence.is_beam:
                    tokens[i] = []
        if step.num_hidden:
            assert executed.hidden is not None
            self._embeddings.give_rows(step, executed.hidden)
        updates = self._scheduler.update(step, tokens, executed.late)
        searched: list[SequenceUpdate] = []
        if self._beams.any:
            updates = [u for u in updates if not self._beams.holds(u.request_id)]
            searched = self._beams.take_in(step, verified.logprobs)
        if self._constraints.active:
            self._constraints.prepare(step.samples)
        if speculation is not None:
            speculation.verified(step, tokens)
            if executed.features is not None:
                speculation.observe(step, tokens, executed.features)
        if step.num_hidden:
            self._embeddings.add_to(updates, step)
        if errors:
            # Others of a request that fails may have come to their own end in this step.
            updates = [u for u in updates if u.finish_reason or u.request_id not in errors]
        if verified.logprobs or self._prompts.any:
            self._add_logprobs(updates, step, verified.logprobs)
        for update in searched:
            if update.index == 0 and self._prompts.any:
                update.prompt_logprobs = self._prompts.pop(update.request_id)
        updates += searched
        for request_id, message in errors.items():
            self._prompts.pop(request_id)
            self._beams.drop(request_id)
            aborted = self._scheduler.abort(request_id)
            updates += ends_of(aborted, FinishReason.ERROR, message)
            for update in updates:
                if update.request_id == request_id:
                    if not aborted:
                        update.finish_reason, update.error = FinishReason.ERROR, message
                    update.refused = update.error is not None and request_id in refused
        return updates

    def _add_logprobs(
        self,
        updates: list[SequenceUpdate],
        step: ScheduledStep,
        logprobs: dict[int, list[TokenLogprobs]],
    ) -> None:
        """Put into ``updates`` what was asked for: of each token, and once of the prompt."""
        chosen = {
            (step.samples[i].request_id, step.samples[i].index): entries
            for i, entries in logprobs.items()
        }
        for update in updates:
            entries = chosen.get((update.request_id, update.index))
            if entries is not None:
                update.logprobs = entries[: len(update.token_ids)]
            if update.index == 0:
                update.prompt_logprobs = self._prompts.pop(update.request_id)


def ends_of(
    sequences: Iterable[SequenceState], reason: FinishReason, message: str | None = None
) -> list[SequenceUpdate]:
    """The ends of sequences that there are outputs of: of a beam search, not of all that run."""
    return [end_of(s, reason, message) for s in sequences if s.index < s.params.n]


def end_of(
    sequence: SequenceState, reason: FinishReason, message: str | None = None
) -> SequenceUpdate:
    return SequenceUpdate(
        sequence.request_id,
        sequence.index,
        [],
        num_cached_tokens=sequence.num_cached_tokens,
        finish_reason=reason,
        error=message,
    )
