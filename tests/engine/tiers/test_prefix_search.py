"""What of a prefix is in the pool and in the stores below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from support.handed import request

from penstock.cache.geometry import BLOCK_SIZE
from penstock.cache.kv_cache import KvCache
from penstock.cache.prefix import Key
from penstock.engine.cached_blocks import CachedBlocks
from penstock.engine.tiers.block_store import BlockStore
from penstock.engine.tiers.coming import Coming
from penstock.engine.tiers.prefix_search import PrefixSearch
from penstock.interface.blocks import BlockBytes
from penstock.scheduler.sequence import SequenceState, make_sequences

BLOCKS = 10


class Memory:
    """A cache of which nothing is read or written."""

    group_bytes = (1 << 20,)

    def read(self, group: int, blocks: Sequence[int]) -> BlockBytes:
        raise NotImplementedError

    def write(self, group: int, blocks: Sequence[int], content: BlockBytes) -> None: ...


class Evicting:
    """A store whose writer takes a block away right after it was found, once."""

    name = "disk"
    lasts = True

    def __init__(self, gone: Key | None = None) -> None:
        self._gone = gone
        self.asked: list[Key] = []

    def holds(self, key: Key, group: int) -> bool:
        self.asked.append(key)
        return self.asked.count(key) == 1 or key != self._gone

    def use(self, keys: Sequence[Key], group: int) -> None: ...
    def read(self, number: int, pieces: object) -> None: ...


def waiting(cache: KvCache) -> tuple[SequenceState, list[Key]]:
    """A sequence of which the pool has nothing, and the keys of its blocks."""
    tokens = [*range(BLOCKS * BLOCK_SIZE + 1)]
    sequence = make_sequences(request("a", tokens), 0)
    return sequence, cache.keys(sequence.table, sequence.token_ids, BLOCKS)


def test_a_block_may_make_room_while_it_is_looked_for() -> None:
    """It is asked for and does not come, as any other that made room before it was read."""
    cache = KvCache(100, BLOCK_SIZE)
    blocks = CachedBlocks(cache, cast("Any", Memory()))
    sequence, keys = waiting(cache)
    store = Evicting(gone=keys[4])
    search = PrefixSearch(cache, blocks, [cast("BlockStore", store)], Coming())
    found = search.longest(sequence, 1)
    assert found.keys == keys
    assert [key for each in found.wanted for key in each.keys] == keys
    assert len(store.asked) == BLOCKS  # each once


def test_each_block_is_read_from_the_first_store_that_has_it() -> None:
    cache = KvCache(100, BLOCK_SIZE)
    blocks = CachedBlocks(cache, cast("Any", Memory()))
    sequence, keys = waiting(cache)
    content = BlockBytes(np.zeros(2 << 20, np.uint8), np.zeros(2, np.uint32))
    blocks.write(keys[:2], 0, content)

    class Some(Evicting):
        def __init__(self, held: Sequence[Key]) -> None:
            super().__init__()
            self._held = held

        def holds(self, key: Key, group: int) -> bool:
            return key in self._held

    stores = [cast("BlockStore", Some(each)) for each in (keys[3:5], keys[1:8])]
    found = PrefixSearch(cache, blocks, stores, Coming()).longest(sequence, 2)
    assert (found.found, len(found.keys)) == (2, 8)
    assert [(each.store, each.places) for each in found.wanted] == [(0, (3, 4)), (1, (2, 5, 6, 7))]
    # Of the first store alone there is nothing behind what the pool has.
    assert PrefixSearch(cache, blocks, stores, Coming()).longest(sequence, 1).wanted == []
