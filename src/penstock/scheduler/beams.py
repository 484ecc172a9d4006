"""Sequences of a beam search: they go on together, and one may take another's place."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cache.block_table import BlockTable
from penstock.cache.kv_cache import KvCache
from penstock.scheduler.in_flight import InFlight
from penstock.scheduler.preemption import Preemption
from penstock.scheduler.queues import Queues
from penstock.scheduler.sequence import SequenceState, Status


class BeamPlaces:
    """Lets sequences go on as others did, which share their blocks from then on.

    The sequences of a beam search get no token in a step (``SequenceState.is_beam``): each waits,
    with nothing left to compute, until all are computed and it is known who goes on. What that is
    worth must not be lost to others that wait for each other in the same way, so where no sequence
    can be scheduled, one that waits gives way (:meth:`give_way`).
    """

    def __init__(
        self,
        cache: KvCache,
        queues: Queues,
        in_flight: InFlight,
        preemption: Preemption,
        max_num_seqs: int,
    ) -> None:
        self._cache = cache
        self._queues = queues
        self._in_flight = in_flight
        self._preemption = preemption
        self._max_num_seqs = max_num_seqs

    def go_on(
        self, sequences: Sequence[SequenceState], parents: Sequence[int], tokens: Sequence[int]
    ) -> list[SequenceState]:
        """Let a sequence go on as ``sequences[parents[i]]`` did, with ``tokens[i]``, for each i.

        Returns the sequence that does. The first of a parent's is the parent itself; those that
        nobody goes on from take the places of the others. No step in flight has any of them.
        """
        assert not any(map(self._in_flight.involves, sequences)), "a beam is in flight"
        free = [s for i, s in enumerate(sequences) if i not in set(parents)]
        chosen: list[SequenceState] = []
        used: set[int] = set()
        for parent in parents:
            if parent in used:
                chosen.append(free.pop(0))
                self._take_after(chosen[-1], sequences[parent])
            else:
                chosen.append(sequences[parent])
                used.add(parent)
        for sequence, token in zip(chosen, tokens, strict=True):
            sequence.token_ids.append(token)
        return chosen

    def give_way(self) -> bool:
        """Preempt the last running sequence that waits for the others of its request, unless these
        are the next that is admitted; returns whether there was one."""
        if not self._queues.num_waiting or self._in_flight.steps:
            return False
        next_in = self._queues.first().request_id
        for sequence in reversed(self._queues.running):
            waits = sequence.is_beam and sequence.num_computed == sequence.num_tokens
            if waits and sequence.request_id != next_in:
                self._preemption.preempt(sequence)
                return True
        return False

    def _take_after(self, child: SequenceState, parent: SequenceState) -> None:
        """Give up what the child has for what the parent has. Without a place, or where the parent
        has none, it waits, and is computed again; what is cached of it is found."""
        queues = self._queues
        was_running = child.status is Status.RUNNING
        if was_running:
            self._cache.free(child.table)
        child.token_ids = parent.token_ids[:]
        has_place = was_running or len(queues.running) < self._max_num_seqs
        if parent.status is Status.RUNNING and has_place:
            child.table = self._cache.fork(parent.table)
            child.num_computed = parent.num_computed
            child.adapter_slot = parent.adapter_slot
            if not was_running:
                queues.run(child)
            return
        child.table = BlockTable.of_root(parent.table.root)
        if was_running:
            queues.wait(child)
