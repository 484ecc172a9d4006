"""Blocks that running sequences need to their ends."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.cache.kv_cache import KvCache
from penstock.scheduler.sequence import SequenceState


class Reservation:
    """Lets a sequence run only if the cache holds it and all that run to their ends, so that none
    has to give its blocks back; nor does one give way to another tenant, which is let in as others
    end.

    Each counts with its longest end (``SequenceState.most_blocks``), and a block that several share
    once for each. Where nothing runs, any sequence may.
    """

    def __init__(self, cache: KvCache, max_num_batched_tokens: int) -> None:
        # What a step computes at once is kept until it is done, also behind a window.
        windowed = sum(window is not None for window in cache.windows)
        behind = windowed * -(-max_num_batched_tokens // cache.block_size)
        self._blocks = cache.num_blocks - behind

    def holds(self, running: Iterable[SequenceState], newcomer: SequenceState) -> bool:
        """Whether the newcomer may run beside these."""
        needed, alone = _to_the_end(newcomer), True
        for sequence in running:
            needed += _to_the_end(sequence)
            alone = False
        return alone or needed <= self._blocks


def _to_the_end(sequence: SequenceState) -> int:
    if sequence.siblings and sequence.num_output_tokens == 0:  # they will go on from its prompt
        return sequence.most_blocks * (1 + len(sequence.siblings))
    return sequence.most_blocks
