"""The way up: blocks of waiting sequences are read, and put into the cache before these start."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from penstock.cache.kv_cache import KvCache
from penstock.cache.prefix import Key
from penstock.engine.cached_blocks import CachedBlocks
from penstock.engine.tiers.disk import Disk
from penstock.engine.tiers.fetch import Fetch
from penstock.engine.tiers.prefix_search import PIECE_BYTES, Look, PrefixSearch, TieredPrefix
from penstock.engine.tiers.rule import ReadingCosts
from penstock.interface.blocks import BlockBytes, DamagedBlockError
from penstock.interface.buckets import Buckets
from penstock.kvstore.workers import Piece
from penstock.scheduler.sequence import SequenceState, Slot, Status

FETCH_SECONDS: Final = tuple(m * 10.0**e for e in range(-3, 2) for m in (1, 2, 5))
"""Bounds of intervals, from 1 ms to 50 s."""
MOST_LOSSES: Final = 20
"""How often a sequence is looked for again that has lost what it had."""
STAGED_BYTES: Final = 512 << 20
"""Most bytes that are read, or have been, for sequences whose turn has not come."""


class Restoring:
    """Reads for sequences as they arrive, as many as fit :data:`STAGED_BYTES`, and for the others
    when their turn comes; one whose blocks have not come then is passed over until they have.

    What has come is put into the cache as far as free blocks are not wanted by those that run, and
    the rest when the sequence can start. Blocks in the cache have no owner: if something takes them
    before, they are computed.
    """

    def __init__(
        self,
        cache: KvCache,
        blocks: CachedBlocks,
        disk: Disk,
        costs: ReadingCosts,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._cache = cache
        self._blocks = blocks
        self._disk = disk
        self._costs = costs
        self._now = now
        self._search = PrefixSearch(cache, blocks, disk)
        self._whole = [g for g, window in enumerate(blocks.windows) if window is None]
        self._fetches: dict[SequenceState, Fetch] = {}
        self._by_number: dict[int, Fetch] = {}
        self._looked: Slot[Look] = Slot()
        self._losses: Slot[int] = Slot()
        """How often it was looked for again."""
        self._count = 0
        self.fetched = self.declined = self.given_up = self.damaged = 0
        self.tokens = 0
        """Tokens of prefixes that became longer."""
        self.saved_s = 0.0
        """Seconds that computing these would have taken, by the rate of the time."""
        self.fetch_seconds = Buckets.empty(FETCH_SECONDS)
        """Seconds from the look at the disk until all blocks of a sequence had come."""

    @property
    def is_reading(self) -> bool:
        return any(not fetch.has_come for fetch in self._fetches.values())

    @property
    def num_aside(self) -> int:
        """Sequences that wait for their blocks though their turn has come."""
        return sum(fetch.aside_until is not None for fetch in self._fetches.values())

    def expect(self, sequence: SequenceState) -> None:
        """A sequence has been queued: its blocks may be read before its turn."""
        staged = sum(fetch.bytes for fetch in self._fetches.values())
        if staged < STAGED_BYTES:
            self._begin(sequence)

    def ready(self, sequence: SequenceState, reserve: int) -> bool:
        """As ``scheduler.admission.Gate``."""
        fetch = self._fetches.get(sequence)
        if fetch is None and not self._has_looked(sequence):
            fetch = self._begin(sequence)
        if fetch is not None and not fetch.has_come:
            return self._set_aside(fetch)
        if not self._fits(sequence, reserve):
            return True  # it waits for blocks, and comes again
        if fetch is not None:
            while fetch.staged:
                self._put(fetch, fetch.staged.popleft())
        if self._has_lost(sequence, fetch) and self._may_look_again(sequence):
            # What the pool had when it was looked for was reused while the sequence waited.
            if fetch is not None:
                self._forget(fetch)
            fetch = self._begin(sequence)
            if fetch is not None:
                return self._set_aside(fetch)
        if fetch is not None and not sequence.started:
            sequence.num_restored_tokens = fetch.restored * self._blocks.block_size
        return True

    def advance(self, running: int, budget: int = PIECE_BYTES) -> list[SequenceState]:
        """Put what has come into the cache, about ``budget`` bytes of it; returns the sequences
        that were set aside and are to wait again. Between steps, ``running`` sequences of which
        will want blocks."""
        for piece in self._disk.arrived():
            self._arrive(piece)
        self._clean()
        self._put_some(running, budget)
        back = []
        now = self._now() if self._fetches else 0.0
        for fetch in self._fetches.values():
            if fetch.aside_until is None:
                continue
            if not fetch.has_come and now >= fetch.aside_until:
                self._give_up(fetch)
            if fetch.has_come:
                fetch.aside_until = None
                back.append(fetch.sequence)
        return back

    def reset(self) -> None:
        """Forget what is being read: it was computed before something changed."""
        for fetch in self._fetches.values():
            self._give_up(fetch)
            fetch.staged.clear()

    def _set_aside(self, fetch: Fetch) -> bool:
        """Let a sequence be passed over until its blocks have come, or for as long as is worth it;
        returns False."""
        tokens = (len(fetch.keys) - fetch.found) * self._blocks.block_size
        fetch.aside_until = self._now() + self._costs.patience_s(tokens)
        return False

    def _has_looked(self, sequence: SequenceState) -> bool:
        """Whether nothing was to be read for a sequence as it stands."""
        look = self._looked.get(sequence)
        return look is not None and look[:2] == _stand(sequence)

    def _has_lost(self, sequence: SequenceState, fetch: Fetch | None) -> bool:
        """Whether the pool has less of a prefix than when it was looked for, or what was read for
        it."""
        if sequence.wants_prompt_rows or (fetch is not None and fetch.is_short):
            return False
        found = self._search.found(sequence)
        if fetch is not None:
            return found < len(fetch.keys)
        look = self._looked.get(sequence)
        return look is not None and found < look.found

    def _may_look_again(self, sequence: SequenceState) -> bool:
        """Whether what it has lost may be looked for once more: where the pool is very small, it
        might lose it each time."""
        times = self._losses.get(sequence) or 0
        self._losses.set(sequence, times + 1)
        return times < MOST_LOSSES

    def _begin(self, sequence: SequenceState) -> Fetch | None:
        """Have the blocks of a sequence read, if that is worth it."""
        fetch, found = None, 0
        if not sequence.wants_prompt_rows:
            prefix = self._search.longest(sequence)
            found = prefix.found
            if prefix.wanted:
                fetch = self._fetch(sequence, prefix)
        if fetch is None:
            self._looked.set(sequence, Look(*_stand(sequence), found))
        return fetch

    def _fetch(self, sequence: SequenceState, prefix: TieredPrefix) -> Fetch | None:
        sizes, keys = self._blocks.group_bytes, prefix.keys
        tokens = (len(keys) - prefix.found) * self._blocks.block_size
        size = sum(len(each.keys) * sizes[each.group] for each in prefix.wanted)
        waiting = sum(each.unread for each in self._fetches.values())
        if not self._costs.worth(tokens, size, waiting):
            self.declined += 1
            return None
        self._count += 1
        fetch = Fetch(sequence, self._count, keys, prefix.found, size, size, self._now())
        self._fetches[sequence] = self._by_number[fetch.number] = fetch
        self._disk.read(fetch.number, prefix.wanted)
        self.fetched += 1
        return fetch

    def _arrive(self, piece: Piece) -> None:
        if piece.found:
            self._costs.bandwidth.add(len(piece.content.data), piece.seconds)
        size = len(piece.wanted.keys) * self._blocks.group_bytes[piece.wanted.group]
        fetch = self._by_number.get(piece.number)
        if fetch is None or fetch.has_come:  # it was given up
            return
        fetch.unread -= size
        if piece.found:
            fetch.staged.append(piece)
        if piece.found < len(piece.wanted.keys):  # what is behind it would not be found
            self._give_up(fetch)
        elif fetch.unread == 0:
            self.fetch_seconds.add(self._now() - fetch.began)

    def _give_up(self, fetch: Fetch) -> None:
        """Wait for nothing more; what has come is of use."""
        fetch.is_short = True
        if not fetch.has_come:
            self._disk.cancel(fetch.number)
            fetch.unread = 0
            self.given_up += 1

    def _forget(self, fetch: Fetch) -> None:
        self._give_up(fetch)
        del self._fetches[fetch.sequence], self._by_number[fetch.number]

    def _put_some(self, running: int, budget: int) -> None:
        """Put blocks into the cache that has room for them beside what runs, and beside what was
        put there before for those that have not started."""
        promised = sum(fetch.adopted for fetch in self._fetches.values())
        room = self._blocks.num_free - running * len(self._blocks.windows) - promised
        for fetch in self._fetches.values():
            while fetch.staged and budget > 0:
                piece = fetch.staged[0]
                if piece.found > room:
                    return
                fetch.staged.popleft()
                room -= piece.found
                budget -= len(piece.content.data)
                self._put(fetch, piece)

    def _put(self, fetch: Fetch, piece: Piece) -> None:
        """Put blocks into the cache, and let what the sequence will find stay there longest."""
        wanted, count = piece.wanted, piece.found
        keys = list(wanted.keys[:count])
        for group in range(len(self._blocks.windows)):
            self._blocks.renew(fetch.keys, group)
        try:
            self._blocks.write(keys, wanted.group, piece.content)
        except DamagedBlockError:
            count = self._put_whole_ones(keys, wanted.group, piece.content)
            self._give_up(fetch)  # what is behind it would not be found
            fetch.staged.clear()
        fetch.adopted += count
        if self._whole and wanted.group == self._whole[0]:
            fetch.restored += count

    def _put_whole_ones(self, keys: list[Key], group: int, content: BlockBytes) -> int:
        """Put blocks into the cache up to the first that is damaged, which is removed from the
        disk; returns how many."""
        each = self._blocks.group_bytes[group]
        for i, key in enumerate(keys):
            data = content.data[i * each : (i + 1) * each]
            try:
                self._blocks.write([key], group, BlockBytes(data, content.checksums[i : i + 1]))
            except DamagedBlockError:
                self.damaged += 1
                self._disk.drop([key], group)
                return i
        return len(keys)

    def _fits(self, sequence: SequenceState, reserve: int) -> bool:
        known = len(sequence.token_ids)
        prefix = self._cache.lookup(sequence.table, sequence.token_ids, known - 1)
        return self._cache.fits(prefix, known, reserve)

    def _clean(self) -> None:
        """Forget the sequences that have started, or ended."""
        done = [s for s in self._fetches if s.status in (Status.RUNNING, Status.FINISHED)]
        for sequence in done:
            fetch = self._fetches[sequence]
            self._forget(fetch)
            if sequence.status is Status.RUNNING:
                tokens = fetch.restored * self._blocks.block_size
                self.tokens += tokens
                if self._costs.rate.known:
                    self.saved_s += self._costs.computing_s(tokens)


def _stand(sequence: SequenceState) -> tuple[int, int]:
    return len(sequence.token_ids), sequence.num_preemptions
