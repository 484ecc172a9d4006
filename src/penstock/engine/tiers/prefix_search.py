"""What of a sequence's prefix is in the pool, and what is on disk."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.cache.geometry import first_seen_block
from penstock.cache.kv_cache import KvCache
from penstock.cache.prefix import Key
from penstock.engine.cached_blocks import CachedBlocks
from penstock.engine.tiers.disk import Disk
from penstock.kvstore.workers import Wanted
from penstock.scheduler.sequence import SequenceState

PIECE_BYTES: Final = 8 << 20
"""About as many bytes are read, and put into the cache, at once."""


class TieredPrefix(NamedTuple):
    """The longest prefix of a sequence that pool and disk have together."""

    keys: list[Key]
    wanted: list[Wanted]
    """What is to be read of it."""
    found: int
    """How many of its blocks the pool has."""


class Look(NamedTuple):
    """How a sequence stood when nothing was to be read for it."""

    tokens: int
    preemptions: int
    found: int
    """Blocks of its prefix that the pool had."""


class PrefixSearch:
    """Looks for prefixes in pool and disk together, as the cache itself finds them."""

    def __init__(self, cache: KvCache, blocks: CachedBlocks, disk: Disk) -> None:
        self._cache = cache
        self._blocks = blocks
        self._disk = disk
        self._whole = [g for g, window in enumerate(blocks.windows) if window is None]

    def found(self, sequence: SequenceState) -> int:
        """How many blocks of its prefix the pool has."""
        tokens = sequence.token_ids
        prefix = self._cache.lookup(sequence.table, tokens, len(tokens) - 1)
        return prefix.num_tokens // self._blocks.block_size

    def longest(self, sequence: SequenceState) -> TieredPrefix:
        """The longest prefix that pool and disk have together; its blocks are used now."""
        size, windows = self._blocks.block_size, self._blocks.windows
        limit = len(sequence.token_ids) - 1
        found = self.found(sequence)
        keys = self._cache.keys(sequence.table, sequence.token_ids, limit // size)
        count = found
        while count < len(keys) and all(self._is_kept(keys[count], g) for g in self._whole):
            count += 1
        count = max(self._within_windows(keys, count), found)
        wanted: list[Wanted] = []
        for group, window in enumerate(windows):
            start = 0 if window is None else first_seen_block(window, count * size, size)
            self._disk.use(keys[start:count], group)
            if count == found:
                continue
            places = [i for i in range(start, count) if not self._blocks.has(keys[i], group)]
            each = max(PIECE_BYTES // self._blocks.group_bytes[group], 1)
            for begin in range(0, len(places), each):
                part = tuple(places[begin : begin + each])
                wanted.append(Wanted(group, part, tuple(keys[i] for i in part)))
        return TieredPrefix(keys[:count], wanted, found)

    def _within_windows(self, keys: list[Key], count: int) -> int:
        """How many of ``count`` blocks are a prefix of which groups with windows have what is seen,
        too."""
        size = self._blocks.block_size
        windowed = [(g, w) for g, w in enumerate(self._blocks.windows) if w is not None]
        agreeing = at = 0
        while count and agreeing < len(windowed):
            group, window = windowed[at]
            first = first_seen_block(window, count * size, size)
            missing = next(
                (i for i in range(count - 1, first - 1, -1) if not self._is_kept(keys[i], group)),
                None,
            )
            if missing is not None:  # nor does any longer prefix that sees it
                count, agreeing = missing, -1
            agreeing += 1
            at = (at + 1) % len(windowed)
        return count

    def _is_kept(self, key: Key, group: int) -> bool:
        return self._blocks.has(key, group) or self._disk.holds(key, group)
