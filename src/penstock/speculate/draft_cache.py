"""The bookkeeping of a draft model's own KV cache."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from penstock.cache.block_table import BlockTable
from penstock.cache.geometry import BLOCK_SIZE, Window
from penstock.cache.kv_cache import BlockCopy, KvCache
from penstock.scheduler.sequence import SequenceState, Status


@dataclass(eq=False, slots=True)
class Reading:
    """How far a sequence was read into a draft's cache; proposers add fields of their own."""

    table: BlockTable = field(default_factory=BlockTable)
    num_computed: int = 0
    """Leading positions whose keys and values are in the cache. Those of drafts may lie behind
    them; they are written again."""

    @property
    def end(self) -> int:
        """First position of the sequence of which nothing is known yet."""
        return self.num_computed


R = TypeVar("R", bound=Reading)


class DraftCache(Generic[R]):
    """Hands the blocks of a draft's cache to the sequences that it reads.

    A proposer begins a reading of a sequence (:meth:`begin`, :meth:`begin_cached`), asks how many
    positions fit (:meth:`num_fitting`), makes them writable (:meth:`extend`), and reports what was
    computed (:meth:`commit`), which gives back blocks behind ``windows``, those of the KV groups.
    Sequences that ended or were preempted are dropped by :meth:`forget_ended`."""

    def __init__(
        self,
        num_blocks: int,
        windows: Sequence[Window | None] = (None,),
        prefix_caching: bool = False,
    ) -> None:
        self._cache = KvCache(
            num_blocks, BLOCK_SIZE, windows=windows, enable_prefix_caching=prefix_caching
        )
        self._readings: dict[SequenceState, R] = {}

    def get(self, sequence: SequenceState) -> R | None:
        """Return the reading of ``sequence``, if there is one."""
        return self._readings.get(sequence)

    def begin(self, sequence: SequenceState, reading: R) -> R:
        """Begin a ``reading`` from nothing; an earlier one of the sequence is given up."""
        old = self._readings.get(sequence)
        if old is not None:
            self._cache.free(old.table)
        self._readings[sequence] = reading
        return reading

    def begin_cached(self, sequence: SequenceState, reading: R) -> R | None:
        """Begin a ``reading`` behind what the cache has of the tokens, the last one left out.

        What is cached is shared as the target's is. Returns None, and begins nothing, if there is
        no block for another position.
        """
        table, cache, tokens = reading.table, self._cache, sequence.token_ids
        table.root = sequence.table.root
        prefix = cache.lookup(table, tokens, len(tokens) - 1)
        cached = prefix.num_tokens
        if not cache.begin(table, prefix, cached + 1, cached + 1):
            return None
        reading.num_computed = cached
        return self.begin(sequence, reading)

    def num_fitting(self, reading: R) -> int:
        """Return the maximum number of positions after the computed ones that fit now."""
        return self._cache.num_fitting(reading.table, reading.num_computed)

    def extend(self, reading: R, end: int) -> None:
        """Make the positions after the computed ones writable up to ``end``, which must fit
        (:meth:`num_fitting`)."""
        if reading.table.blocks:
            copies: list[BlockCopy] = []
            fits = self._cache.extend(reading.table, reading.num_computed, end, copies)
            assert not copies, "a draft's blocks are its own, but for full ones"
        else:
            fits = self._cache.begin(reading.table, None, end, end) == end
        assert fits, "more than num_fitting"

    def commit(self, reading: R, tokens: array[int]) -> None:
        """Note that the computed positions were executed; ``tokens`` are the sequence's, by which
        they are found where prefixes are cached."""
        self._cache.commit(reading.table, tokens, reading.num_computed)

    def forget_ended(self) -> None:
        """Free the blocks of sequences that ended or were preempted."""
        ended = [s for s in self._readings if s.status is not Status.RUNNING]
        for sequence in ended:
            self._cache.free(self._readings.pop(sequence).table)

    def reset(self) -> None:
        """Forget cached prefixes. What is read keeps its blocks."""
        self._cache.reset()

    def check_integrity(self) -> None:
        """Raise AssertionError if blocks are held by others than the readings."""
        self._cache.check_integrity()
        held = sum(reading.table.num_held for reading in self._readings.values())
        assert held == self._cache.num_held_blocks, "a sequence that is not read holds blocks"
        for sequence, reading in self._readings.items():
            running = sequence.status is Status.RUNNING
            assert not running or reading.end <= len(sequence.token_ids)

    def clear(self) -> None:
        """Forget all sequences, as the end of the executor is near."""
        self._readings.clear()
