"""Admits waiting sequences to the step being composed."""

from __future__ import annotations

from time import monotonic

from penstock.cache.kv_cache import KvCache
from penstock.cache.prefix_cache import CachedPrefix
from penstock.scheduler.give_way import GiveWay
from penstock.scheduler.in_flight import InFlight
from penstock.scheduler.output import ScheduledSequence, scheduled
from penstock.scheduler.queues import Queues, Turn
from penstock.scheduler.reservation import Reservation
from penstock.scheduler.sequence import SequenceState
from penstock.scheduler.step_budget import StepBudget


class Admission:
    """Admits waiting sequences in turn, without overtaking, as far as places, blocks and the step's
    budget last; also names the sequence to preempt for one that does not fit.

    The scheduler owns the queues, the cache and the steps in flight, and preempts.
    """

    def __init__(
        self,
        cache: KvCache,
        queues: Queues,
        in_flight: InFlight,
        max_num_seqs: int,
        all_hidden: bool,
        reservation: Reservation | None = None,
    ) -> None:
        """``all_hidden``: the hidden states of every token are wanted. Without a ``reservation``,
        sequences run as long as their known tokens fit."""
        self._cache = cache
        self._queues = queues
        self._in_flight = in_flight
        self._max_num_seqs = max_num_seqs
        self._all_hidden = all_hidden
        self._reservation = reservation
        self._give_way = GiveWay(cache, max_num_seqs)
        self.prefix_queries = 0
        """The prompt tokens of admitted requests, for which cached prefixes were looked up."""
        self.prefix_hits = 0
        """The prompt tokens of these requests that were found in the cache."""

    def admit(
        self, left: StepBudget, chosen: list[ScheduledSequence], before: Turn | None = None
    ) -> None:
        """Add waiting sequences to the ``chosen`` ones of a step, as far as they fit.

        With ``before``, only those whose turn is before that.
        """
        queues = self._queues
        while queues.num_waiting and left.tokens and len(queues.running) < self._max_num_seqs:
            sequence = queues.first()
            if before is not None and queues.turn(sequence) >= before:
                break
            if not self._start(sequence, left):
                break
            start = sequence.num_computed
            count = left.most(sequence, len(sequence.token_ids) - sequence.awaits_mask - start)
            count = min(count, sequence.table.writable - start)
            if count:
                chosen.append(scheduled(sequence, start, count, self._all_hidden))
                left.take(chosen[-1])
                if queues.shares.contended:
                    queues.shares.serve(sequence.tenant, count)

    def victim(self) -> SequenceState | None:
        """Return the running sequence to preempt for the first waiting one (there must be one), if
        that is of a tenant below its share and does not fit; none where sequences run surely to
        their ends. Call it once in each step."""
        if self._reservation is not None or not self._give_way.due():
            return None
        newcomer = self._queues.first()
        if self._in_flight.bars(newcomer):
            return None

        def fits() -> bool:
            known = len(newcomer.token_ids)
            reserve = len(self._queues.running)
            return self._cache.fits(self._cached(newcomer), known, reserve=reserve)

        return self._give_way.victim(self._queues, newcomer, fits)

    def _cached(self, sequence: SequenceState) -> CachedPrefix:
        """Return the cached prefix of its tokens, without those that must be computed."""
        known = len(sequence.token_ids)
        limit = sequence.num_prompt_rows if sequence.wants_prompt_rows else known - 1
        return self._cache.lookup(sequence.table, sequence.token_ids, limit)

    def _start(self, sequence: SequenceState, left: StepBudget) -> bool:
        """Start a waiting sequence if all its known tokens fit; returns whether they do.

        One block per running sequence stays free, which they will want soon: without this margin
        the newcomer would often be preempted at once. Where all are held to their ends, none wants
        more than it has.
        """
        if self._in_flight.bars(sequence) or (sequence.wants_prompt_rows and left.prompt_rows == 0):
            return False
        running, reservation = self._queues.running, self._reservation
        if reservation is not None and not reservation.holds(running, sequence):
            return False
        known, cache = len(sequence.token_ids), self._cache
        prefix = self._cached(sequence)
        cached = prefix.num_tokens
        end = min(known, cached + left.tokens)
        if sequence.wants_prompt_rows:
            end = min(end, sequence.num_prompt_rows + left.prompt_rows)
        reserve = len(running) if reservation is None else 0
        if not cache.begin(sequence.table, prefix, end, known, reserve=reserve):
            return False
        if not sequence.started:
            sequence.started = True
            sequence.num_cached_tokens = cached
            sequence.scheduled_at = monotonic()
            if cache.enable_prefix_caching and not sequence.wants_prompt_rows:
                self.prefix_queries += sequence.num_prompt_tokens
                self.prefix_hits += cached
        sequence.num_computed = cached
        self._queues.run(sequence)
        return True
