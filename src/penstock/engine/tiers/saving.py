"""The way down: blocks that were published are copied out of the cache and given to the disk."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final, NamedTuple

from penstock.cache.geometry import is_seen_behind
from penstock.cache.kv_cache import KvCache
from penstock.cache.prefix import Key
from penstock.engine.cached_blocks import CachedBlocks
from penstock.engine.tiers.disk import Disk
from penstock.kvstore.blocks import NewBlock
from penstock.scheduler.sequence import SequenceState

STEP_BYTES: Final = 8 << 20
"""About as many bytes are copied between two steps, which takes 1 to 2 ms."""


class _Due(NamedTuple):
    """A block to save, of every group of layers that has it."""

    parent: Key
    place: int
    key: Key


class Saving:
    """Writes through: every block that is published is saved, unless it is gone before there was
    time and room, since the disk is slower than the engine for a while. It is lost then; nobody
    waits for a write."""

    def __init__(self, cache: KvCache, blocks: CachedBlocks, disk: Disk) -> None:
        self._cache = cache
        self._news = cache.follow()
        self._blocks = blocks
        self._disk = disk
        self._due: deque[_Due] = deque()
        self.saved = 0
        """Blocks that were given to the disk."""
        self.missed = 0
        """Those that were gone before."""

    @property
    def has_work(self) -> bool:
        """Whether something could be saved now."""
        return bool(self._due or self._news) and self._room > 0

    @property
    def place_bytes(self) -> int:
        """Bytes of a block of every group of layers."""
        return sum(self._blocks.group_bytes)

    @property
    def waiting(self) -> int:
        """Places of a chain whose blocks were not saved yet."""
        return len(self._due) + sum(len(each.keys) for each in self._news)

    def advance(self, budget: int = STEP_BYTES) -> None:
        """Save some blocks, of about ``budget`` bytes at most. Between steps."""
        self._take_news()
        sizes = self._blocks.group_bytes
        budget = min(budget, self._room)
        most = budget // self.place_bytes
        if not self._due or most < 1:
            return
        due = list(islice(self._due, most))
        for _ in due:
            self._due.popleft()
        blocks: list[NewBlock] = []
        for group in range(len(sizes)):
            window = self._blocks.windows[group]
            wanted = [
                each
                for each in due
                if (window is None or is_seen_behind(window, each.place))
                and not self._disk.holds(each.key, group)
            ]
            there = [each for each in wanted if self._blocks.has(each.key, group)]
            self.missed += len(wanted) - len(there)
            if not there:
                continue
            content = self._blocks.read([each.key for each in there], group)
            rows = content.data.reshape(len(there), sizes[group])
            blocks += [
                NewBlock(each.key, each.parent, group, each.place, row, int(checksum))
                for each, row, checksum in zip(there, rows, content.checksums, strict=True)
            ]
        if blocks:
            self._disk.write(blocks)
            self.saved += len(blocks)

    def again(self, sequence: SequenceState) -> None:
        """A sequence is asked for: what the pool has of its prefix and the disk has lost is saved
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
            _Due(parents[place], place, key)
            for place, key in enumerate(keys)
            if not self._disk.holds(key, group) and self._blocks.has(key, group)
        )

    def forget(self) -> None:
        """Save nothing of what was published so far."""
        self._take_news()
        self._due.clear()

    @property
    def _room(self) -> int:
        """Bytes that the disk takes now; none before it takes a whole block of every group."""
        room = self._disk.room
        return room if room >= self.place_bytes else 0

    def _take_news(self) -> None:
        news = self._news
        while news:
            each = news.popleft()
            parent = each.parent
            for place, key in enumerate(each.keys, each.first):
                self._due.append(_Due(parent, place, key))
                parent = key
