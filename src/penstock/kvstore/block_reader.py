"""Reads blocks out of the slots that they are in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.cache.prefix import Key
from penstock.interface.blocks import BlockBytes, Bytes, Checksums
from penstock.kvstore.blocks import is_of, name_of
from penstock.kvstore.cipher import BlockCipher
from penstock.kvstore.layout import pages
from penstock.kvstore.places import Place, runs
from penstock.kvstore.read_memory import joined
from penstock.kvstore.slot_index import SlotIndex


class ReadBlocks(NamedTuple):
    """What was read of some blocks."""

    found: int
    """How many there are, from the first on."""
    content: BlockBytes
    damaged: Sequence[Place] = ()
    """Where the block behind them is, if it cannot be decrypted: it is not found any more, and its
    slot is for ``KvStore.empty``."""


class BlockReader:
    """Reads the blocks of an index. Any thread; methods raise OSError."""

    def __init__(
        self, index: SlotIndex, group_bytes: Sequence[int], cipher: BlockCipher | None
    ) -> None:
        """``group_bytes``: bytes of a block of each group of layers, as the ``cipher`` makes it."""
        self._index = index
        self._group_bytes = tuple(group_bytes)
        self._slot_bytes = pages(max(group_bytes))
        self._cipher = cipher

    def num_bytes(self, count: int) -> int:
        """Bytes of memory into which so many blocks are read."""
        return count * self._slot_bytes

    def read(
        self, keys: Sequence[Key], group: int, memory: Bytes | None, past_cache: bool
    ) -> ReadBlocks:
        """As ``KvStore.read``."""
        places = self._index.places([name_of(key, group) for key in keys])
        size, count = self._group_bytes[group], len(places)
        if memory is None:
            memory, past_cache = np.empty(self.num_bytes(count), np.uint8), False
        slots = memory[: self.num_bytes(count)].reshape(count, self._slot_bytes)
        sums = np.empty(count, np.uint32)
        done = 0
        for segment, numbers in runs(places):
            part = slots[done : done + len(numbers)]
            for entry in segment.read(numbers.start, part, past_cache):
                if not is_of(entry, keys[done], group, size):  # it made room meanwhile
                    return self._opened(keys, group, slots[:done], sums)
                sums[done] = entry["crc"]
                done += 1
        return self._opened(keys, group, slots, sums)

    def _opened(
        self, keys: Sequence[Key], group: int, slots: NDArray[np.uint8], sums: Checksums
    ) -> ReadBlocks:
        """The blocks of slots that were read, up to the first that cannot be decrypted."""
        size, damaged = self._group_bytes[group], list[Place]()
        if self._cipher is None:
            return ReadBlocks(len(slots), BlockBytes(joined(slots, size), sums[: len(slots)]))
        opened: list[bytes] = []
        for key, slot in zip(keys, slots, strict=False):
            content = self._cipher.opened(key, group, slot[:size])
            if content is None:
                damaged = self._index.drop([name_of(key, group)])
                break
            opened.append(content)
        data = np.frombuffer(b"".join(opened), np.uint8)
        return ReadBlocks(len(opened), BlockBytes(data, sums[: len(opened)]), damaged)
