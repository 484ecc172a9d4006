"""Preempts running sequences: they lose their blocks to others, and wait."""

from __future__ import annotations

from penstock.cache.kv_cache import KvCache
from penstock.scheduler.in_flight import InFlight
from penstock.scheduler.output import ScheduledSequence
from penstock.scheduler.queues import Queues
from penstock.scheduler.sequence import SequenceState


class Preemption:
    """Takes running sequences out of the cache and lets them wait, output kept, at their old place.

    What they computed may still be found as a cached prefix.
    """

    def __init__(self, cache: KvCache, queues: Queues, in_flight: InFlight) -> None:
        self._cache = cache
        self._queues = queues
        self._in_flight = in_flight
        self.count = 0
        """How many were preempted so far."""

    def preempt(self, victim: SequenceState) -> None:
        self._cache.free(victim.table)
        self._queues.wait(victim)
        victim.num_preemptions += 1
        if self._in_flight.involves(victim):
            self._in_flight.bar(victim)
        self.count += 1

    def preempt_behind(self, sequence: SequenceState, chosen: list[ScheduledSequence]) -> bool:
        """Preempt the last running sequence behind this one that is not among the ``chosen`` ones
        of the step; returns whether there was one."""
        in_step = {each.sequence for each in chosen}
        for victim in reversed(self._queues.running):
            if victim is sequence:
                return False
            if victim not in in_step:
                self.preempt(victim)
                return True
        return False
