"""The way down: blocks that were published are copied out of the cache and given to a store."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final, NamedTuple

from penstock.cache.geometry import is_seen_behind
from penstock.cache.kv_cache import KvCache
from penstock.engine.cached_blocks import CachedBlocks
from penstock.engine.tiers.block_store import BlockStore, Due
from penstock.interface.blocks import BlockBytes, BlockCopy
from penstock.kvstore.blocks import NewBlock
from penstock.scheduler.sequence import SequenceState

STEP_BYTES: Final = 8 << 20
"""About as many bytes are copied between two steps, which takes 1 to 2 ms."""
BESIDE_BYTES: Final = 256 << 20
"""The same where they are copied beside the steps: at 50 GB/s this takes 5 ms of a bus that has
nothing else to do."""
BESIDE_BLOCKS: Final = 256
"""Most blocks of a group of these, since each is a copy that has to be launched, in some 10 us."""


class _Leaving(NamedTuple):
    """Blocks of one group that are on their way out of the cache."""

    copy: BlockCopy
    due: list[Due]
    group: int
    is_reserved: bool
    """Whether they go where the store has reserved memory."""

    def new_blocks(self) -> list[NewBlock]:
        """The blocks, once the copy is done."""
        content = self.copy.wait()
        if isinstance(content, BlockBytes):
            rows = tuple(content.data.reshape(len(self.due), -1))
            checksums: list[int | None] = content.checksums.tolist()
        else:
            rows, checksums = content.rows, [None] * len(content.rows)
        return [
            NewBlock(each.key, each.parent, self.group, each.place, row, checksum)
            for each, row, checksum in zip(self.due, rows, checksums, strict=True)
        ]


class Saving:
    """Writes through: every block that is published is saved in one store, unless it is gone before
    there was time and room, since the store is slower than the engine for a while. It is lost then;
    nobody waits for a write."""

    def __init__(self, cache: KvCache, blocks: CachedBlocks, store: BlockStore) -> None:
        self._cache = cache
        self._news = cache.follow()
        self._blocks = blocks
        self._store = store
        self._step_bytes = BESIDE_BYTES if blocks.is_beside else STEP_BYTES
        self._due: deque[Due] = deque()
        self._leaving: deque[_Leaving] = deque()
        self._unreserved_bytes = 0
        """Bytes that are leaving, and will take the store's room."""
        self.saved = 0
        """Blocks that were given to the store."""
        self.missed = 0
        """Those that were gone before, or that the store had no room for."""

    @property
    def has_work(self) -> bool:
        """Whether something could be saved now, or is on its way."""
        return bool(self._leaving) or (bool(self._due or self._news) and self._room > 0)

    @property
    def place_bytes(self) -> int:
        """Bytes of a block of every group of layers."""
        return sum(self._blocks.group_bytes)

    @property
    def waiting(self) -> int:
        """Places of a chain whose blocks were not saved yet."""
        return len(self._due) + sum(len(each.keys) for each in self._news)

    @property
    def unwritten_bytes(self) -> int:
        """Bytes of what the store was not given yet."""
        places = self.waiting * self.place_bytes
        sizes = self._blocks.group_bytes
        return places + sum(len(each.due) * sizes[each.group] for each in self._leaving)

    @property
    def is_leaving(self) -> bool:
        return bool(self._leaving)

    def advance(self) -> None:
        """Save some blocks, about as many as there is time for between two steps."""
        self._take_news()
        self._write()
        most = max(self._step_bytes // self.place_bytes, 1)  # one, however large it is
        most = min(most, self._room // self.place_bytes)
        if self._blocks.is_beside:
            most = min(most, BESIDE_BLOCKS)
        if not self._due or most < 1:
            return
        due = list(islice(self._due, most))
        for _ in due:
            self._due.popleft()
        coming = {(each.key, leaving.group) for leaving in self._leaving for each in leaving.due}
        for group, window in enumerate(self._blocks.windows):
            wanted = {
                each.key: each
                for each in due
                if (window is None or is_seen_behind(window, each.place))
                and not self._store.holds(each.key, group)
                and (each.key, group) not in coming
            }
            there = [each for each in wanted.values() if self._blocks.has(each.key, group)]
            self._take(there, group)
            self.missed += len(wanted) - len(there)
        self._write()

    def wait(self) -> None:
        """Wait for the first blocks that are on their way, and save them."""
        if self._leaving:
            self._leaving[0].copy.wait()
            self._write()

    def again(self, sequence: SequenceState) -> None:
        """A sequence is asked for: what the pool has of its prefix and the store has not is saved
        once more, if there is nothing else to save."""
        if self._due or self._news or self._room < self.place_bytes:
            return
        table = sequence.table
        prefix = self._cache.lookup(table, sequence.token_ids, len(sequence.token_ids) - 1)
        count = prefix.num_tokens // self._blocks.block_size
        keys = self._cache.keys(table, sequence.token_ids, count)
        parents = (table.root, *keys)
        group = next((g for g, window in enumerate(self._blocks.windows) if window is None), 0)
        self._due.extend(
            Due(parents[place], place, key)
            for place, key in enumerate(keys)
            if not self._store.holds(key, group) and self._blocks.has(key, group)
        )

    def forget(self) -> None:
        """Save nothing of what was published so far."""
        self._take_news()
        self._due.clear()
        for leaving in self._leaving:
            leaving.copy.wait()  # before another block may have its memory
            self._forget_bytes(leaving)
            if leaving.is_reserved:
                self._store.release(leaving.due, leaving.group)
        self._leaving.clear()

    def close(self) -> None:
        """Save what is on its way, and nothing more."""
        while self._leaving:
            self.wait()
        self._take_news()
        self._due.clear()

    def _take(self, there: list[Due], group: int) -> None:
        """Copy blocks out of the cache, as many as the store has memory for."""
        rows = self._store.reserve(there, group) if there else None
        if rows is not None:
            self.missed += len(there) - len(rows)
            there = there[: len(rows)]
        if not there:
            return
        copy = self._blocks.take([each.key for each in there], group, rows)
        if rows is None:
            self._unreserved_bytes += len(there) * self._blocks.group_bytes[group]
        self._leaving.append(_Leaving(copy, there, group, rows is not None))

    def _write(self) -> None:
        """Give the store what has left the cache."""
        blocks: list[NewBlock] = []
        while self._leaving and self._leaving[0].copy.is_done:
            leaving = self._leaving.popleft()
            self._forget_bytes(leaving)
            blocks += leaving.new_blocks()
        if blocks:
            self._store.write(blocks)
            self.saved += len(blocks)

    def _forget_bytes(self, leaving: _Leaving) -> None:
        if not leaving.is_reserved:
            size = len(leaving.due) * self._blocks.group_bytes[leaving.group]
            self._unreserved_bytes -= size

    @property
    def _room(self) -> int:
        """Bytes that the store takes now; none before it takes a whole block of every group."""
        room = self._store.room - self._unreserved_bytes
        return room if room >= self.place_bytes else 0

    def _take_news(self) -> None:
        news = self._news
        while news:
            each = news.popleft()
            parent = each.parent
            for place, key in enumerate(each.keys, each.first):
                self._due.append(Due(parent, place, key))
                parent = key
