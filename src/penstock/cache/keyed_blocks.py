"""Blocks by the keys of their content, for those who copy them out of the cache and into it: from
and to another engine, memory or a disk.

What comes into the cache is like a block whose owner has ended: it can be found until it is reused,
and nobody owns it. So it takes nothing from sequences that run, needs no books of its own, and may
be gone before anybody has asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.cache.pool import BlockPool
from penstock.cache.prefix import Key, PrefixIndex


class KeyedBlocks:
    """Finds blocks that were published, and adopts new ones. Made by ``KvCache.keyed``."""

    def __init__(self, pool: BlockPool, index: PrefixIndex) -> None:
        self._pool = pool
        self._index = index

    @property
    def num_free(self) -> int:
        """Blocks that can be taken, with content or without."""
        return self._pool.num_free

    def find(self, key: Key, group: int) -> int | None:
        """The block of a group of layers that has this content. It may be reused by the next step
        that is composed."""
        return self._index.find(key, group)

    def adopt(
        self, keys: Sequence[Key], group: int, write: Callable[[Sequence[int], list[int]], None]
    ) -> int:
        """Take a free block for each of the ``keys`` that cannot be found yet, and make it findable
        once ``write`` has filled it; returns how many.

        ``write`` is given the places among ``keys`` and the blocks. If it raises, nothing was
        adopted, and the blocks are blank. As many blocks as there are keys must be free
        (:attr:`num_free`); then none of those that can be found is taken. No step may be in flight
        that still reads free blocks.
        """
        places = [i for i, key in enumerate(keys) if self._index.find(key, group) is None]
        if not places:
            return 0
        if len(places) < len(keys):
            self.renew(keys, group)
        blocks = self._pool.take_several(len(places))
        self._index.drop_several(blocks)
        try:
            write(places, blocks)
        except BaseException:
            for block in blocks:
                self._pool.release(block, keep=False)
            raise
        self._index.publish_several([keys[i] for i in places], blocks, group)
        for block in reversed(blocks):
            self._pool.release(block, keep=block in self._index)
        return len(blocks)

    def renew(self, keys: Sequence[Key], group: int) -> None:
        """Let the blocks of a chain be reused last of all that are free, its first one very last:
        they are about to be asked for. Those that cannot be found are left out."""
        for key in reversed(keys):
            block = self._index.find(key, group)
            if block is not None:
                self._pool.renew(block)
