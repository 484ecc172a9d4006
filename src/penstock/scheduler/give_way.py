"""Chooses sequences to preempt for a tenant that is below its share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from penstock.cache.kv_cache import KvCache
from penstock.scheduler.queues import Queues
from penstock.scheduler.sequence import SequenceState

STEPS_BETWEEN = 8
"""Minimum number of steps between two preemptions for other tenants, so that what is computed again
remains a small part of what is computed."""


class GiveWay:
    """Chooses a running sequence that is preempted for the first one that waits.

    It does so at most once in ``STEPS_BETWEEN`` steps, if the waiting sequence does not fit and its
    tenant would not exceed its share with it. The victim is the newest sequence of the tenant
    furthest above its own share. It is never one of the newcomer's own tenant, nor one of a better
    priority. Giving way never takes a tenant below its share of sequences, and below its share of
    blocks by less than one sequence's, so places do not go back and forth.
    """

    def __init__(self, cache: KvCache, max_num_seqs: int) -> None:
        self._cache = cache
        self._max_num_seqs = max_num_seqs
        self._steps = STEPS_BETWEEN  # since the last victim

    def due(self) -> bool:
        """Whether a victim may be chosen in this step. Call it once in each step."""
        self._steps += 1
        return self._steps >= STEPS_BETWEEN

    def victim(
        self, queues: Queues, newcomer: SequenceState, fits: Callable[[], bool]
    ) -> SequenceState | None:
        """The sequence to preempt, or None. ``fits()`` tells whether there are blocks for the
        newcomer."""
        held: Counter[str] = Counter()
        if len(queues.running) >= self._max_num_seqs:
            places, wanted = self._max_num_seqs, 1
            held.update(sequence.tenant.name for sequence in queues.running)
        elif not fits():
            places = self._cache.num_blocks
            wanted = self._cache.blocks_for(len(newcomer.token_ids))
            for sequence in queues.running:
                held[sequence.tenant.name] += sequence.table.num_held
        else:
            return None
        name = queues.shares.gives_way(newcomer.tenant, held, places, wanted)
        for sequence in reversed(queues.running):
            if sequence.tenant.name == name and sequence.priority >= newcomer.priority:
                self._steps = 0
                return sequence
        return None
