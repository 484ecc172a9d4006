"""The tiers as the engine's loop has them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Final

from penstock.cache.kv_cache import KvCache
from penstock.engine.cached_blocks import CachedBlocks
from penstock.engine.tiers.block_store import BlockStore
from penstock.engine.tiers.restoring import Restoring
from penstock.engine.tiers.rule import LEAST_TOKENS, ReadingCosts
from penstock.engine.tiers.saving import Saving
from penstock.errors import EngineDeadError
from penstock.interface.messages import TierName, TierStats
from penstock.scheduler.sequence import SequenceState

PATIENCE_S: Final = 0.002
"""Longest time, in seconds, that a step without work waits for blocks: so long waits whoever
arrives meanwhile."""
CLOSE_S: Final = 10.0
"""Longest time that an engine's end waits for blocks to be written."""


class KvTiers:
    """Blocks of an engine's cache in stores below the pool. Belongs to the thread that steps the
    engine; all but :meth:`ready` is used between steps."""

    def __init__(
        self,
        cache: KvCache,
        blocks: CachedBlocks,
        stores: Sequence[BlockStore],
        kind: bytes = b"",
        now: Callable[[], float] = time.perf_counter,
        costs: ReadingCosts | None = None,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        """``stores``: the fastest first; ``kind``: the digest of what their blocks are of; ``now``:
        the clock by which steps and waits are measured; ``costs``: what is known of the ways to a
        prefix, where anything is; ``at_end`` is called before the stores are closed."""
        self.kind = kind
        self._cache = cache
        self._blocks = blocks
        self._stores = tuple(stores)
        self._now = now
        self._costs = costs or ReadingCosts(len(stores))
        self._at_end = at_end
        self._savings = [Saving(cache, blocks, store) for store in stores]
        self._restoring = Restoring(cache, blocks, stores, self._costs, now)

    @property
    def has_work(self) -> bool:
        """Whether there is something to do though no step can run."""
        return self._restoring.has_work or any(
            store.has_arrived or saving.has_work
            for store, saving in zip(self._stores, self._savings, strict=True)
        )

    @property
    def num_aside(self) -> int:
        """Sequences that wait for their blocks though their turn has come."""
        return self._restoring.num_aside

    def expect(self, sequence: SequenceState) -> None:
        """A sequence has been queued."""
        self._restoring.expect(sequence)
        self._save_again(sequence)

    def keep(self, sequence: SequenceState, seconds: float) -> None:
        """A sequence has come whose prompt is to stay for so long."""
        count = sequence.num_prompt_tokens // self._cache.block_size
        keys = self._cache.keys(sequence.table, sequence.token_ids, count)
        for store in self._stores:
            store.keep(keys, seconds)

    def ready(self, sequence: SequenceState, reserve: int) -> bool:
        """As ``scheduler.admission.Gate``."""
        return self._restoring.ready(sequence, reserve)

    def advance(self, running: int) -> list[SequenceState]:
        """Move what there is time to move between two steps; returns the sequences that were set
        aside and are to wait again."""
        back = self._restoring.advance(running)
        started = self._restoring.started
        while started:  # what one store had, the others have not
            self._save_again(started.pop())
        for store, saving in zip(self._stores, self._savings, strict=True):
            if store.is_off:
                saving.forget()
            elif saving.has_work:
                saving.advance()
        return back

    def wait(self) -> None:
        """Wait a moment for what is on its way, since no step can run."""
        for saving in self._savings:
            if saving.is_leaving:
                saving.wait()
                return
        if any(saving.has_work for saving in self._savings):
            return
        if self._restoring.is_reading and not any(store.has_arrived for store in self._stores):
            self._stores[-1].wait(PATIENCE_S)

    def computed(self, tokens: int, seconds: float) -> None:
        """A step has computed so many tokens."""
        self._restoring.stepped(seconds)
        if tokens >= LEAST_TOKENS:
            self._costs.rate.add(tokens, seconds)

    def reset(self) -> None:
        """Forget all blocks, those in the stores too."""
        for saving in self._savings:
            saving.forget()
        self._restoring.reset()
        for store in self._stores:
            store.clear()

    def stats(self) -> dict[TierName, TierStats]:
        return {store.name: self._stats(number) for number, store in enumerate(self._stores)}

    def _stats(self, number: int) -> TierStats:
        store, saving = self._stores[number], self._savings[number]
        restored, figures = self._restoring.restored[number], store.stats()
        return TierStats(
            name=store.name,
            blocks=figures.blocks,
            pinned_blocks=figures.pinned,
            unwritten_bytes=figures.unwritten_bytes + saving.unwritten_bytes,
            aside=self._restoring.aside_for(number),
            fetches=restored.fetches,
            declined=restored.declined,
            given_up=self._restoring.given_up[number],
            restored_tokens=restored.tokens,
            saved_seconds=restored.saved_s,
            read_bytes=figures.read_bytes,
            read_seconds=figures.read_seconds,
            written_bytes=figures.written_bytes,
            missed_blocks=saving.missed,
            evicted_blocks=figures.evicted,
            damaged_blocks=self._restoring.damaged[number] + figures.damaged,
            failures=figures.failures,
            fetch_seconds=restored.fetch_seconds,
        )

    def close(self) -> None:
        """Write what is still to be written, as far as there is time, where it outlives the
        engine."""
        end = self._now() + CLOSE_S
        self._at_end()
        self._restoring.close()
        for store, saving in zip(self._stores, self._savings, strict=True):
            with contextlib.suppress(EngineDeadError):  # a device that has failed copies no more
                if store.lasts:
                    self._save_rest(store, saving, end)
                saving.close()
        self._blocks.mover.close()
        for store in self._stores:
            store.close(max(end - self._now(), 1.0))

    def _save_rest(self, store: BlockStore, saving: Saving, end: float) -> None:
        """Save what was not saved yet, until a time."""
        while saving.waiting and not store.is_off and self._now() < end:
            is_idle = not store.stats().unwritten_bytes
            if saving.has_work:
                saving.advance()
                saving.wait()
            elif is_idle:  # it has failed, and takes nothing before it is tried again
                return
            else:
                time.sleep(PATIENCE_S)

    def _save_again(self, sequence: SequenceState) -> None:
        for saving in self._savings:
            saving.again(sequence)
