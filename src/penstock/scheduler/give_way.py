"""Who makes room for whom, where one tenant has what is another's share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from penstock.cache.kv_cache import KvCache
from penstock.scheduler.queues import Queues
from penstock.scheduler.sequence import Sequence

STEPS_BETWEEN = 8
"""What is computed again for others' sake is thereby a small part of what is computed."""


class GiveWay:
    """Once in some steps, where the first that waits finds no room and its tenant would have no
    more than its share, the newest sequence of the tenant furthest above its own must wait instead.

    Never one of the newcomer's own tenant, nor one of a better priority. A tenant that gave way is
    not below its share for that, so places do not go back and forth.
    """

    def __init__(self, cache: KvCache, max_num_seqs: int) -> None:
        self._cache = cache
        self._max_num_seqs = max_num_seqs
        self._steps = STEPS_BETWEEN  # since one gave way

    def due(self) -> bool:
        """Whether one may give way now; to be asked once in each step."""
        self._steps += 1
        return self._steps >= STEPS_BETWEEN

    def victim(
        self, queues: Queues, newcomer: Sequence, fits: Callable[[], bool]
    ) -> Sequence | None:
        """Who is to wait, if somebody is. ``fits``: whether there are blocks for the newcomer."""
        held: Counter[str] = Counter()
        if len(queues.running) >= self._max_num_seqs:
            places, wanted = self._max_num_seqs, 1
            held.update(sequence.tenant.name for sequence in queues.running)
        elif not fits():
            places = self._cache.num_blocks
            wanted = self._cache.blocks_for(len(newcomer.token_ids))
            for sequence in queues.running:
                held[sequence.tenant.name] += len(sequence.table.block_ids)
        else:
            return None
        name = queues.shares.gives_way(newcomer.tenant, held, places, wanted)
        for sequence in reversed(queues.running):
            if sequence.tenant.name == name and sequence.priority >= newcomer.priority:
                self._steps = 0
                return sequence
        return None
