"""The tier as the engine's loop has it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from penstock.cache.kv_cache import KvCache
from penstock.engine.cached_blocks import CachedBlocks
from penstock.engine.tiers.disk import Disk
from penstock.engine.tiers.restoring import Restoring
from penstock.engine.tiers.rule import LEAST_TOKENS, ReadingCosts
from penstock.engine.tiers.saving import Saving
from penstock.interface.messages import TierStats
from penstock.scheduler.sequence import SequenceState

PATIENCE_S: Final = 0.002
"""Longest time, in seconds, that a step without work waits for blocks: so long waits whoever
arrives meanwhile."""
CLOSE_S: Final = 10.0
"""Longest time that an engine's end waits for blocks to be written."""


class KvTier:
    """Blocks of an engine's cache on disk. Belongs to the thread that steps the engine; all but
    :meth:`ready` is used between steps."""

    def __init__(
        self,
        cache: KvCache,
        blocks: CachedBlocks,
        disk: Disk,
        kind: bytes = b"",
        now: Callable[[], float] = time.perf_counter,
        costs: ReadingCosts | None = None,
    ) -> None:
        """``kind``: the digest of what its blocks are of; ``now``: the clock by which steps and
        waits are measured; ``costs``: what is known of both ways to a prefix, where anything
        is."""
        self.kind = kind
        self._cache = cache
        self._disk = disk
        self._now = now
        self._costs = costs or ReadingCosts()
        self._saving = Saving(cache, blocks, disk)
        self._restoring = Restoring(cache, blocks, disk, self._costs, now)

    @property
    def has_work(self) -> bool:
        """Whether there is something to do though no step can run."""
        return self._restoring.has_work or self._disk.has_arrived or self._saving.has_work

    def expect(self, sequence: SequenceState) -> None:
        """A sequence has been queued."""
        self._restoring.expect(sequence)
        self._saving.again(sequence)

    def keep(self, sequence: SequenceState, seconds: float) -> None:
        """A sequence has come whose prompt is to stay for so long."""
        count = sequence.num_prompt_tokens // self._cache.block_size
        keys = self._cache.keys(sequence.table, sequence.token_ids, count)
        self._disk.keep(keys, seconds)

    def ready(self, sequence: SequenceState, reserve: int) -> bool:
        """As ``scheduler.admission.Gate``."""
        return self._restoring.ready(sequence, reserve)

    def advance(self, running: int) -> list[SequenceState]:
        """Move what there is time to move between two steps; returns the sequences that were set
        aside and are to wait again."""
        back = self._restoring.advance(running)
        if self._saving.has_work:
            self._saving.advance()
        return back

    def wait(self) -> None:
        """Wait a moment for what is being read, since no step can run."""
        if self._restoring.is_reading and not self._saving.has_work:
            self._disk.wait(PATIENCE_S)

    def computed(self, tokens: int, seconds: float) -> None:
        """A step has computed so many tokens."""
        self._restoring.stepped(seconds)
        if tokens >= LEAST_TOKENS:
            self._costs.rate.add(tokens, seconds)

    def reset(self) -> None:
        """Forget all blocks, those on disk too."""
        self._saving.forget()
        self._restoring.reset()
        self._disk.clear()

    def stats(self) -> TierStats:
        restoring, disk = self._restoring, self._disk.stats()
        return TierStats(
            name="disk",
            blocks=disk.blocks,
            pinned_blocks=disk.pinned,
            unwritten_bytes=disk.unwritten_bytes + self._saving.waiting * self._saving.place_bytes,
            aside=restoring.num_aside,
            fetches=restoring.fetched,
            declined=restoring.declined,
            given_up=restoring.given_up,
            restored_tokens=restoring.tokens,
            saved_seconds=restoring.saved_s,
            read_bytes=disk.read_bytes,
            read_seconds=disk.read_seconds,
            written_bytes=disk.written_bytes,
            missed_blocks=self._saving.missed,
            evicted_blocks=disk.evicted,
            damaged_blocks=restoring.damaged,
            failures=disk.failures,
            fetch_seconds=restoring.fetch_seconds,
        )

    def close(self) -> None:
        """Write what is still to be written, as far as there is time."""
        end = self._now() + CLOSE_S
        while self._saving.waiting and not self._disk.is_off and self._now() < end:
            if self._saving.has_work:
                self._saving.advance()
            else:
                time.sleep(PATIENCE_S)
        self._disk.close(max(end - self._now(), 1.0))
