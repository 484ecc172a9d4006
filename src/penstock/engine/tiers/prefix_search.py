"""What of a sequence's prefix is in the pool, on its way there, and in the stores below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.cache.geometry import Window, first_seen_block
from penstock.cache.kv_cache import KvCache
from penstock.cache.prefix import Key
from penstock.engine.cached_blocks import CachedBlocks
from penstock.engine.tiers.block_store import BlockStore
from penstock.engine.tiers.coming import Coming
from penstock.engine.tiers.fetch import Awaited
from penstock.kvstore.pieces import Wanted
from penstock.scheduler.sequence import SequenceState

PIECE_BYTES: Final = 8 << 20
"""About as many bytes are read, and put into the cache, at once."""
_POOL: Final = -1


class TieredPrefix(NamedTuple):
    """The longest prefix of a sequence that the pool and stores below it have together."""

    keys: list[Key]
    wanted: list[Wanted]
    """What is to be read of it, each block from the first store that has it."""
    behind: list[Awaited]
    """The pieces that bring the rest of it, and are read for other sequences: the last ones of the
    prefix first."""
    found: int
    """How many of its blocks the pool has."""


class _Whereabouts:
    """Where blocks are: each is looked for once, so that a search agrees with itself while a disk's
    writer makes room."""

    def __init__(self, blocks: CachedBlocks, stores: Sequence[BlockStore], coming: Coming) -> None:
        self._blocks = blocks
        self._stores = stores
        self._coming = coming
        self._found: dict[tuple[Key, int], int | Awaited | None] = {}

    def of(self, key: Key, group: int) -> int | Awaited | None:
        """:data:`_POOL`, the piece that brings the block, the number of the first store that has
        it, or None."""
        name = key, group
        if name not in self._found:
            self._found[name] = self._look(key, group)
        return self._found[name]

    def _look(self, key: Key, group: int) -> int | Awaited | None:
        if self._blocks.has(key, group):
            return _POOL
        piece = self._coming.of(key, group)
        if piece is not None:
            return piece
        return next((i for i, store in enumerate(self._stores) if store.holds(key, group)), None)


class PrefixSearch:
    """Looks for prefixes in the pool and the stores below it together, as the cache itself finds
    them."""

    def __init__(
        self, cache: KvCache, blocks: CachedBlocks, stores: Sequence[BlockStore], coming: Coming
    ) -> None:
        """``stores``: the fastest first; ``coming``: what is on its way."""
        self._cache = cache
        self._blocks = blocks
        self._stores = tuple(stores)
        self._coming = coming
        self._whole = [g for g, window in enumerate(blocks.windows) if window is None]

    def found(self, sequence: SequenceState) -> int:
        """How many blocks of its prefix the pool has."""
        tokens = sequence.token_ids
        prefix = self._cache.lookup(sequence.table, tokens, len(tokens) - 1)
        return prefix.num_tokens // self._blocks.block_size

    def longest(self, sequence: SequenceState, stores: int) -> TieredPrefix:
        """The longest prefix that the pool and the first ``stores`` have together."""
        size = self._blocks.block_size
        limit = len(sequence.token_ids) - 1
        found = self.found(sequence)
        keys = self._cache.keys(sequence.table, sequence.token_ids, limit // size)
        where = _Whereabouts(self._blocks, self._stores[:stores], self._coming)
        count = found
        while count < len(keys) and all(where.of(keys[count], g) is not None for g in self._whole):
            count += 1
        count = max(self._within_windows(keys, count, where), found)
        wanted: list[Wanted] = []
        behind: dict[Awaited, None] = {}  # in the order in which they come
        if count > found:
            for group, window in enumerate(self._blocks.windows):
                wanted += self._wanted(keys[:count], group, window, where, behind)
        return TieredPrefix(keys[:count], wanted, [*reversed(behind)], found)

    def use(self, keys: list[Key]) -> None:
        """Note in all stores that a prefix is asked for."""
        size, count = self._blocks.block_size, len(keys)
        for group, window in enumerate(self._blocks.windows):
            start = 0 if window is None else first_seen_block(window, count * size, size)
            for store in self._stores:
                store.use(keys[start:], group)

    def _wanted(
        self,
        keys: list[Key],
        group: int,
        window: Window | None,
        where: _Whereabouts,
        behind: dict[Awaited, None],
    ) -> list[Wanted]:
        """What is to be read of one group of layers, in pieces of one store each; adds to
        ``behind`` what brings the rest."""
        size, count = self._blocks.block_size, len(keys)
        start = 0 if window is None else first_seen_block(window, count * size, size)
        places: dict[int, list[int]] = {}
        for place in range(start, count):
            store = where.of(keys[place], group)
            if isinstance(store, Awaited):
                behind[store] = None
            elif store is not None and store != _POOL:
                places.setdefault(store, []).append(place)
        each = max(PIECE_BYTES // self._blocks.group_bytes[group], 1)
        wanted = []
        for store in sorted(places):
            for begin in range(0, len(places[store]), each):
                part = tuple(places[store][begin : begin + each])
                wanted.append(Wanted(group, part, tuple(keys[i] for i in part), store))
        return wanted

    def _within_windows(self, keys: list[Key], count: int, where: _Whereabouts) -> int:
        """How many of ``count`` blocks are a prefix of which groups with windows have what is seen,
        too."""
        size = self._blocks.block_size
        windowed = [(g, w) for g, w in enumerate(self._blocks.windows) if w is not None]
        agreeing = at = 0
        while count and agreeing < len(windowed):
            group, window = windowed[at]
            first = first_seen_block(window, count * size, size)
            places = range(count - 1, first - 1, -1)
            missing = next((i for i in places if where.of(keys[i], group) is None), None)
            if missing is not None:  # nor does any longer prefix that sees it
                count, agreeing = missing, -1
            agreeing += 1
            at = (at + 1) % len(windowed)
        return count
