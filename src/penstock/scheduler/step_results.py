"""What executed steps bring: tokens, drafts that were accepted, siblings that go on, and ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.cache.kv_cache import KvCache
from penstock.interface.messages import FinishReason, SequenceUpdate
from penstock.scheduler.accepted_drafts import AcceptedDrafts
from penstock.scheduler.in_flight import InFlight
from penstock.scheduler.output import ScheduledSequence, ScheduledStep
from penstock.scheduler.queues import Queues
from penstock.scheduler.sequence import SequenceState, Status
from penstock.scheduler.updates import sequence_update

RUNNING, FINISHED = Status.RUNNING, Status.FINISHED  # a name is cheaper than an enum's member


class StepResults:
    """Takes in the executed steps of one scheduler, in their order.

    A step advances its sequences and publishes their full blocks; siblings go on from the prompt
    that it has completed; what has ended gives its blocks back. ``tokens_generated`` counts what
    sequences got.
    """

    def __init__(
        self,
        cache: KvCache,
        queues: Queues,
        in_flight: InFlight,
        accepted: AcceptedDrafts,
        max_num_seqs: int,
        finish: Callable[[SequenceState], None],
    ) -> None:
        """``finish`` ends a sequence that has a reason to end."""
        self._cache = cache
        self._queues = queues
        self._in_flight = in_flight
        self._accepted = accepted
        self._max_num_seqs = max_num_seqs
        self._finish = finish
        self.tokens_generated = 0

    def take_in(
        self, step: ScheduledStep, sampled: Sequence[list[int]], late: frozenset[int]
    ) -> list[SequenceUpdate]:
        """Take in the oldest step that was not; ``sampled[i]`` are the new tokens of
        ``step.samples[i]``, and those that are ``late`` have none. See ``Scheduler.update``."""
        updates: list[SequenceUpdate] = []
        undone = {step.samples[i] for i in late} if late else ()
        uncommon = step.num_drafted or undone  # one look for each sequence, not two
        new_tokens = iter(sampled)
        cache, ahead, generated = self._cache, False, 0
        if self._in_flight.steps:
            ahead = True
            self._in_flight.land(step)
        for each in step.sequences:
            sequence, samples = each.sequence, each.samples
            end = each.start + each.num_tokens
            if uncommon and (each.draft is not None or sequence in undone):
                drawn = next(new_tokens)
                if sequence in undone:
                    self._undo(each)
                elif sequence.status is RUNNING:  # else it has ended meanwhile
                    updates.append(self._take_in_draft(each, drawn))
                    generated += len(updates[-1].token_ids)
                continue
            if sequence.status is not RUNNING:
                pass  # ended, or preempted in flight: what was written is nobody's
            elif ahead:
                cache.publish(sequence.table, sequence.token_ids, end)
            else:
                sequence.num_computed = end
                cache.commit(sequence.table, sequence.token_ids, end)
                if sequence.wants_prompt_rows:
                    sequence.prompt_rows_given(end)
                if len(samples) > 1:
                    self.fork(sequence)
            if sequence.pooling is not None:
                if sequence.status is RUNNING and end == len(sequence.token_ids):
                    sequence.finish_reason = FinishReason.STOP
                    self._finish(sequence)
                    updates.append(sequence_update(sequence, []))
                continue
            for sequence in samples:
                tokens = next(new_tokens)
                if sequence.status is FINISHED:
                    continue  # aborted, or a row too many
                accepted = sequence.append_at(end, tokens) if ahead else sequence.append(tokens)
                generated += len(accepted)
                updates.append(sequence_update(sequence, accepted))
                if sequence.finish_reason is not None:
                    self._finish(sequence)
        self.tokens_generated += generated
        return updates

    def fork(self, leader: SequenceState) -> None:
        """Let its siblings go on from the leader's prompt, or queue them when no place is free."""
        for sibling in leader.siblings:
            sibling.started = True
            sibling.num_cached_tokens = leader.num_cached_tokens
            sibling.num_restored_tokens = leader.num_restored_tokens
            sibling.num_host_tokens = leader.num_host_tokens
            if len(self._queues.running) < self._max_num_seqs:
                sibling.table = self._cache.fork(leader.table)
                sibling.num_computed = leader.num_computed
                sibling.adapter_slot = leader.adapter_slot
                self._queues.run(sibling)
            else:
                self._queues.wait(sibling)
                if self._in_flight.steps:
                    self._in_flight.bar(sibling)

    def _take_in_draft(self, each: ScheduledSequence, drawn: list[int]) -> SequenceUpdate:
        """Advance a running sequence over the drafts that were accepted."""
        accepted = self._accepted.take_in(each, drawn)
        if each.sequence.finish_reason is not None:
            self._finish(each.sequence)
        return sequence_update(each.sequence, accepted)

    def _undo(self, each: ScheduledSequence) -> None:
        """Leave the last known position of a sequence to be computed again, for its logits.

        The same values are written again where they are, and nothing that could be found: a block
        is published once its last position stays. A sequence that is alone in its row: the first
        token of a request, for which its siblings share one, never comes late.
        """
        sequence, draft = each.sequence, each.draft
        assert each.samples == (sequence,), "siblings wait for each other"
        if sequence.status is not RUNNING:
            return
        last = each.start + each.num_tokens - 1 - (0 if draft is None else len(draft))
        sequence.num_computed = last
        self._cache.commit(sequence.table, sequence.token_ids, last)
        if sequence.wants_prompt_rows:
            sequence.prompt_rows_given(last + 1)
        if draft is not None:
            self._cache.trim(sequence.table)
