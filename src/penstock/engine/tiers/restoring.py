"""The way up: blocks of waiting sequences are read, and put into the cache before these start."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from penstock.cache.kv_cache import KvCache
from penstock.engine.cached_blocks import CachedBlocks
from penstock.engine.tiers.block_store import BlockStore
from penstock.engine.tiers.coming import Coming
from penstock.engine.tiers.fetch import Fetch, Restored, bytes_ahead
from penstock.engine.tiers.intake import STAGED_BYTES, Intake
from penstock.engine.tiers.looks import Looks
from penstock.engine.tiers.prefix_search import PrefixSearch, TieredPrefix
from penstock.engine.tiers.rule import Choice, ReadingCosts
from penstock.kvstore.pieces import Piece
from penstock.scheduler.sequence import SequenceState, Status


class Restoring:
    """Reads for sequences as they arrive, as many as fit :data:`STAGED_BYTES`, and for the others
    when their turn comes; one whose blocks have not come then is passed over until they have.

    What is on its way for one sequence is not read for another one that begins alike: that one
    waits for it. Blocks in the cache have no owner: if something takes them before their sequence
    starts, they are looked for again, or computed.
    """

    def __init__(
        self,
        cache: KvCache,
        blocks: CachedBlocks,
        stores: Sequence[BlockStore],
        costs: ReadingCosts,
        now: Callable[[], float] = time.perf_counter,
        busy: Callable[[], float] = time.thread_time,
    ) -> None:
        """``stores``: the fastest first; ``costs``: of as many; ``busy``: as for
        :class:`Intake`."""
        self._cache = cache
        self._blocks = blocks
        self._stores = tuple(stores)
        self._costs = costs
        self._now = now
        self._coming = Coming()
        self._search = PrefixSearch(cache, blocks, stores, self._coming)
        self._fetches: dict[SequenceState, Fetch] = {}
        self._by_number: dict[int, Fetch] = {}
        self._intake = Intake(blocks, stores, costs, self._coming, now, busy)
        self._looks = Looks()
        self._count = 0
        self._choice = Choice(costs)
        self.restored = tuple(Restored() for _ in self._stores)
        """What was read from each store."""
        self.started: list[SequenceState] = []
        """Sequences that have started with blocks that were read, for who takes them from here."""

    @property
    def has_work(self) -> bool:
        """Whether blocks are on their way to sequences that wait for them, or sequences have ended
        of which no note was taken."""
        return any(
            fetch.is_aside or not fetch.has_come or fetch.sequence.status is Status.FINISHED
            for fetch in self._fetches.values()
        )

    @property
    def is_reading(self) -> bool:
        return any(fetch.in_flight for fetch in self._fetches.values())

    @property
    def given_up(self) -> Sequence[int]:
        """Fetches of which not all came from each store, or not in time."""
        return self._intake.given_up

    @property
    def damaged(self) -> Sequence[int]:
        """Blocks of each store that were not what their checksum says."""
        return self._intake.damaged

    @property
    def num_aside(self) -> int:
        """Sequences that wait for their blocks though their turn has come."""
        return sum(fetch.is_aside for fetch in self._fetches.values())

    def aside_for(self, store: int) -> int:
        """Those of them that wait for blocks of a store."""
        return sum(fetch.is_aside and fetch.waits_for(store) for fetch in self._fetches.values())

    def expect(self, sequence: SequenceState) -> None:
        """A sequence has been queued: its blocks may be read before its turn."""
        staged = sum(fetch.bytes for fetch in self._fetches.values())
        if staged < STAGED_BYTES:
            self._begin(sequence)

    def ready(self, sequence: SequenceState, reserve: int) -> bool:
        """As ``scheduler.admission.Gate``."""
        fetch = self._fetches.get(sequence)
        if fetch is None and not self._looks.covers(sequence):
            fetch = self._begin(sequence)
        if fetch is not None and not fetch.has_come:
            return self._set_aside(fetch)
        if not self._fits(sequence, reserve):
            return True  # it waits for blocks, and comes again
        if fetch is not None:
            if self._intake.waits_calmly(fetch):
                return self._set_aside(fetch)
            if fetch.staged:
                self._intake.put_all(fetch)
        if self._has_lost(sequence, fetch) and self._looks.may_repeat(sequence):
            # What the pool had when it was looked for was reused while the sequence waited.
            before = fetch
            if before is not None:
                self._forget(before)
            fetch = self._begin(sequence)
            if fetch is not None:
                if before is not None:
                    fetch.go_on_from(before, self._now())
                return self._set_aside(fetch)
        if fetch is not None and not sequence.started:
            each = zip(self._stores, fetch.restored, strict=True)
            from_host = sum(count for store, count in each if store.name == "host")
            sequence.num_restored_tokens = sum(fetch.restored) * self._blocks.block_size
            sequence.num_host_tokens = from_host * self._blocks.block_size
        return True

    def advance(self, running: int) -> list[SequenceState]:
        """Put into the cache what has come, and ask the stores for more; returns the sequences that
        were set aside and are to wait again. Between steps, ``running`` sequences of which will
        want blocks."""
        self._intake.running = running
        self._intake.land()
        for store in self._stores:
            for piece in store.arrived():
                self._arrive(piece)
        self._clean()
        if not self._fetches:
            return []
        now = self._now()
        fetches = sorted(self._fetches.values(), key=lambda fetch: fetch.turn_at is None)
        if running == 0:  # the disk does not wait for what is put
            self._intake.ask(fetches, now)
        self._intake.put(fetches, now)
        self._intake.ask(fetches, now)
        for fetch in fetches:
            fetch.pass_over_what_came()
        back = []
        for fetch in fetches:
            if not fetch.is_aside:
                continue
            if not fetch.has_come and fetch.is_over(now):
                self._intake.give_up(fetch)
            is_put = not fetch.staged or fetch.lacks_room
            if fetch.has_come and is_put and not self._intake.waits_calmly(fetch):
                fetch.come_back(now)
                back.append(fetch.sequence)
        return back

    def stepped(self, seconds: float) -> None:
        """A step took so long."""
        now = self._now() if self._fetches else 0.0
        haste = max((fetch.haste(now) for fetch in self._fetches.values()), default=1.0)
        self._intake.pace.earn(seconds, haste)

    def reset(self) -> None:
        """Forget what is being read: it was computed before something changed."""
        for fetch in self._fetches.values():
            self._intake.give_up(fetch)
            self._intake.let_go(fetch)

    def close(self) -> None:
        """Read nothing more, and wait for what is on its way into the cache."""
        self.reset()
        self._intake.close()

    def _set_aside(self, fetch: Fetch) -> bool:
        """Let a sequence be passed over until its blocks have come, or for as long as is worth it;
        returns False."""
        fetch.set_aside(self._now())
        return False

    def _has_lost(self, sequence: SequenceState, fetch: Fetch | None) -> bool:
        """Whether the pool has less of a prefix than when it was looked for, or what was read for
        it."""
        if sequence.wants_prompt_rows or (fetch is not None and fetch.is_short):
            return False
        found = self._search.found(sequence)
        return found < (self._looks.found(sequence) if fetch is None else len(fetch.keys))

    def _begin(self, sequence: SequenceState) -> Fetch | None:
        """Have the blocks of a sequence read, if that is worth it."""
        fetch, found = None, 0
        if not sequence.wants_prompt_rows:
            prefix = longest = self._search.longest(sequence, len(self._stores))
            found = longest.found
            while prefix.wanted or prefix.behind:
                fetch = self._fetch(sequence, prefix)
                if fetch is not None or not prefix.wanted:
                    break
                # Perhaps what the faster ones have is worth it.
                slowest = max(each.store for each in prefix.wanted)
                prefix = self._search.longest(sequence, slowest)
            self._search.use(longest.keys)
        if fetch is None:
            self._looks.add(sequence, found)
        return fetch

    def _fetch(self, sequence: SequenceState, prefix: TieredPrefix) -> Fetch | None:
        keys, sizes = prefix.keys, [0] * len(self._stores)
        tokens = (len(keys) - prefix.found) * self._blocks.block_size
        for each in prefix.wanted:
            sizes[each.store] += self._intake.size(each)
        fetches = self._fetches.values()
        needed, before = bytes_ahead(sizes, prefix.behind, fetches, self._intake.size)
        if any(needed) and not self._choice.reads(tokens, needed, before):
            self.restored[max(i for i, size in enumerate(needed) if size)].declined += 1
            return None
        stores = frozenset(store for store, size in enumerate(sizes) if size)
        self._count += 1
        fetch = Fetch(
            sequence,
            self._count,
            keys,
            prefix.found,
            sum(sizes),
            sizes,
            stores,
            self._now(),
            self._costs.calm_s(tokens),
            self._costs.patience_s(tokens),
            prefix.behind,
            deque(prefix.wanted),
            restored=[0] * len(sizes),
        )
        self._fetches[sequence] = self._by_number[fetch.number] = fetch
        self._coming.add(fetch, prefix.wanted)
        self._intake.ask([fetch], fetch.began)
        for store in stores:
            self.restored[store].fetches += 1
        return fetch

    def _arrive(self, piece: Piece) -> None:
        store = piece.wanted.store
        if piece.found:
            self._costs.bandwidths[store].add(piece.num_bytes, piece.seconds)
            self._intake.pace.has_read(piece.num_bytes, piece.busy_s)
        size = self._intake.size(piece.wanted)
        fetch = self._by_number.get(piece.number)
        if fetch is None or fetch.has_come:  # it was given up
            self._stores[store].done(piece)
            return
        fetch.unread[store] -= size
        fetch.in_flight -= size
        self._coming.has_arrived(fetch, piece.wanted)
        if piece.found:
            fetch.staged.append(piece)
        else:
            self._stores[store].done(piece)
        if piece.found < len(piece.wanted.keys):  # what is behind it would not be found
            self._intake.give_up(fetch)
        elif not any(fetch.unread):
            for number in fetch.stores:
                self.restored[number].fetch_seconds.add(self._now() - fetch.began)

    def _forget(self, fetch: Fetch) -> None:
        self._intake.give_up(fetch)
        self._intake.let_go(fetch)
        self._coming.drop(fetch)
        del self._fetches[fetch.sequence], self._by_number[fetch.number]

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
            if not sequence.num_computed:  # it ended while it waited
                continue
            for restored, count in zip(self.restored, fetch.restored, strict=True):
                tokens = count * self._blocks.block_size
                restored.tokens += tokens
                if self._costs.rate.known:
                    restored.saved_s += self._costs.computing_s(tokens)
            if fetch.adopted:
                self.started.append(sequence)
