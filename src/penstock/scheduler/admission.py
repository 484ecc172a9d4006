"""Admits waiting sequences to the step being composed."""

from __future__ import annotations

from time import monotonic
from typing import Protocol

from penstock.cache.kv_cache import KvCache
from penstock.cache.prefix_cache import CachedPrefix
from penstock.interface.adapters import NO_ADAPTER
from penstock.scheduler.give_way import GiveWay
from penstock.scheduler.in_flight import InFlight
from penstock.scheduler.output import ScheduledSequence, scheduled
from penstock.scheduler.queues import Party, Queues, Turn, party_of
from penstock.scheduler.reservation import Reservation
from penstock.scheduler.residents import Claims, Residents
from penstock.scheduler.sequence import SequenceState, Status
from penstock.scheduler.step_budget import StepBudget


class Gate(Protocol):
    """What may bring cached blocks of a waiting sequence from elsewhere before it starts
    (``engine/tiers/``)."""

    def ready(self, sequence: SequenceState, reserve: int) -> bool:
        """Whether a sequence whose turn it is may start, as far as blocks that come are concerned.
        Otherwise it is set aside, and whoever brings them lets it wait again.

        ``reserve``: places of blocks that are to stay free when it starts.
        """
        ...


class Admission:
    """Admits waiting sequences in turn, as far as places, blocks and the step's budget last; also
    names the sequence to preempt for one that does not fit.

    Nobody overtakes who waits for these. Who waits for the slot of an adapter is passed by those
    that need none, or whose adapter is there (:class:`~penstock.scheduler.residents.Claims`).

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
        residents: Residents | None = None,
        gate: Gate | None = None,
    ) -> None:
        """``all_hidden``: the hidden states of every token are wanted. Without a ``reservation``,
        sequences run as long as their known tokens fit. Without ``residents`` no sequence has an
        adapter."""
        self._cache = cache
        self._queues = queues
        self._in_flight = in_flight
        self._max_num_seqs = max_num_seqs
        self._all_hidden = all_hidden
        self._reservation = reservation
        self._residents = residents or Residents(0)
        self._gate = gate
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
        queues, claims = self._queues, Claims(self._residents)
        passed: dict[Party, int] = {}
        while queues.num_waiting and left.tokens and len(queues.running) < self._max_num_seqs:
            sequence = queues.first_behind(passed) if passed else queues.first()
            if sequence is None or (before is not None and queues.turn(sequence) >= before):
                break
            slot = self._slot(sequence, claims)
            if slot is None:
                party = party_of(sequence)
                passed[party] = passed.get(party, 0) + 1
                continue
            if self._gate is not None and not self._gate.ready(sequence, self._reserve):
                queues.set_aside(sequence)
                continue
            if not self._start(sequence, left, slot):
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

    @property
    def _reserve(self) -> int:
        """Places of blocks that stay free when a sequence starts."""
        return len(self._queues.running) if self._reservation is None else 0

    def _cached(self, sequence: SequenceState) -> CachedPrefix:
        """Return the cached prefix of its tokens, without those that must be computed."""
        known = len(sequence.token_ids)
        limit = sequence.num_prompt_rows if sequence.wants_prompt_rows else known - 1
        return self._cache.lookup(sequence.table, sequence.token_ids, limit)

    def _slot(self, sequence: SequenceState, claims: Claims) -> int | None:
        """The slot of a waiting sequence's adapter, or ``NO_ADAPTER``; None: it waits for one."""
        if sequence.adapter is None:
            return NO_ADAPTER
        queues = self._queues
        others = queues.requests[sequence.request_id]
        joins = len(others) > 1 and any(each.status is Status.RUNNING for each in others)
        return claims.slot(sequence.adapter, queues.running, joins)

    def _start(self, sequence: SequenceState, left: StepBudget, slot: int) -> bool:
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
        if not cache.begin(sequence.table, prefix, end, known, reserve=self._reserve):
            return False
        if not sequence.started:
            sequence.started = True
            sequence.num_cached_tokens = cached
            sequence.num_restored_tokens = min(sequence.num_restored_tokens, cached)
            sequence.num_host_tokens = min(sequence.num_host_tokens, sequence.num_restored_tokens)
            sequence.scheduled_at = monotonic()
            if cache.enable_prefix_caching and not sequence.wants_prompt_rows:
                self.prefix_queries += sequence.num_prompt_tokens
                self.prefix_hits += cached
        sequence.num_computed = cached
        if sequence.adapter is not None:
            self._residents.put(slot, sequence.adapter)
            sequence.adapter_slot = slot
        self._queues.run(sequence)
        return True
