"""Chooses what running sequences compute in the step being composed."""

from __future__ import annotations

from penstock.cache.kv_cache import BlockCopy, KvCache
from penstock.scheduler.admission import Admission
from penstock.scheduler.in_flight import InFlight
from penstock.scheduler.output import ScheduledSequence, scheduled
from penstock.scheduler.preemption import Preemption
from penstock.scheduler.queues import Queues
from penstock.scheduler.sequence import SequenceState, Status
from penstock.scheduler.step_budget import StepBudget

RUNNING = Status.RUNNING  # a name is cheaper than an enum's member


class Continuation:
    """Chooses what running sequences compute in a step: those that need one token before those that
    need more, each as far as blocks last and the step's budget does.

    Where blocks run out, it preempts; where tenants contend, it charges them, and lets those that
    wait go before the prompts of others.

    What lies behind windows comes back when the step in flight is taken in, and so does what a
    sequence holds that is sure to end there. So while some are in flight, a sequence that finds no
    block is left out of this step, and preempts nobody, if those bring what it lacks or have the
    sequence in them; nor does anybody behind it preempt. It is asked again, in its turn, when they
    are taken in, and preempts where nothing more is to come.
    """

    def __init__(
        self,
        cache: KvCache,
        queues: Queues,
        admission: Admission,
        preemption: Preemption,
        in_flight: InFlight,
        all_hidden: bool,
    ) -> None:
        """``all_hidden``: the hidden states of every token are wanted."""
        self._cache = cache
        self._queues = queues
        self._admission = admission
        self._preemption = preemption
        self._in_flight = in_flight
        self._left_out = False  # whether a sequence was left out of the step that is composed
        self._all_hidden = all_hidden

    def decodes(
        self,
        chosen: list[ScheduledSequence],
        copies: list[BlockCopy],
        masks_pending: bool,
        most: int,
    ) -> list[SequenceState]:
        """Choose the running sequences that need one token, at most so many; returns those that
        need more, in turn.

        Every step has a token for each of these, so none of them looks at the budget.
        """
        queues, extend, all_hidden = self._queues, self._cache.extend, self._all_hidden
        contended = queues.shares.contended
        self._left_out = False
        running = queues.running[:]  # who is preempted leaves the list itself
        prefills: list[SequenceState] = []
        if contended:  # before anybody is charged for this step
            prefills = [s for s in running if len(s.token_ids) - s.num_computed > 1]
            prefills.sort(key=queues.turn)
        uncommon = contended or masks_pending  # one look for each sequence in place of two
        for sequence in running:
            start = sequence.num_computed
            count = len(sequence.token_ids) - start
            if count != 1:
                if count > 1 and not contended:
                    prefills.append(sequence)
                continue
            if sequence.status is not RUNNING or len(chosen) >= most:
                continue  # preempted for one before it, or left for the next step
            if uncommon:
                if sequence.awaits_mask:
                    continue
                if contended:
                    queues.shares.serve(sequence.tenant, 1)
            while not extend(sequence.table, start, start + 1, copies):
                if not self._make_room(sequence, chosen):
                    break
            else:
                chosen.append(scheduled(sequence, start, 1, all_hidden))
        return prefills

    def prefills(
        self,
        sequences: list[SequenceState],
        left: StepBudget,
        chosen: list[ScheduledSequence],
        copies: list[BlockCopy],
    ) -> None:
        """Choose these sequences, which need more than one token, as far as the budget lasts."""
        cache, queues = self._cache, self._queues
        contended = queues.shares.contended
        for sequence in sequences:
            if left.tokens == 0:
                break
            if sequence.status is not RUNNING:
                continue  # preempted for one before it
            start = sequence.num_computed
            count = len(sequence.token_ids) - start - sequence.awaits_mask
            if contended and count > 1 and queues.num_waiting:
                self._admission.admit(left, chosen, queues.turn(sequence))
                if left.tokens == 0:
                    break
            count = left.most(sequence, count)
            if count == 0:
                continue
            if contended:
                queues.shares.serve(sequence.tenant, count)
            while not cache.extend(sequence.table, start, start + count, copies):
                # A prompt is read in smaller steps before anybody is preempted for blocks that
                # windows give back after the step.
                fitting = cache.num_fitting(sequence.table, start)
                shrinks = cache.forgets and count > 1 and fitting > 0
                if shrinks or not self._make_room(sequence, chosen):
                    count = fitting
                    if count == 0:
                        break
            else:
                chosen.append(scheduled(sequence, start, count, self._all_hidden))
                left.take(chosen[-1])

    def _make_room(self, sequence: SequenceState, chosen: list[ScheduledSequence]) -> bool:
        """Preempt others for a sequence that lacks a block; False if it must do with what it
        has."""
        if self._left_out:
            return False
        in_flight = self._in_flight
        if in_flight.steps and (
            (self._cache.forgets and in_flight.involves(sequence))
            or in_flight.brings_place(self._cache)
        ):
            self._left_out = True
            return False
        return self._preemption.preempt_behind(sequence, chosen)
