"""A block to write, and its entry in a segment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from penstock.cache.prefix import Key
from penstock.interface.blocks import Bytes
from penstock.kvstore.layout import ENTRY, Entries

Checksum = Callable[[Bytes], int]
"""The checksum of the bytes of a block, as its writer takes it (CRC-32C)."""
Name = bytes
"""A block's key and its group of layers."""


def name_of(key: Key, group: int) -> Name:
    return key + group.to_bytes(2, "little")


class NewBlock(NamedTuple):
    """A block to write."""

    key: Key
    parent: Key
    """The key of the block before it, or the root of its chain."""
    group: int
    place: int
    """Its position in its chain, from 0."""
    data: Bytes
    checksum: int | None
    """None: whoever writes the block computes it."""

    @property
    def name(self) -> Name:
        return name_of(self.key, self.group)

    @property
    def parent_name(self) -> Name:
        return name_of(self.parent, self.group)


def entries_of(blocks: Sequence[NewBlock]) -> Entries:
    """The entries of blocks, without the fields that ``Segment.put`` fills in."""
    entries = np.zeros(len(blocks), ENTRY)
    for entry, block in zip(entries, blocks, strict=True):
        entry["key"] = block.key
        entry["parent"] = block.parent
        entry["place"] = block.place
        entry["bytes"] = len(block.data)
        assert block.checksum is not None
        entry["crc"] = block.checksum
        entry["group"] = block.group
    return entries


def is_of(entry: np.void, key: Key, group: int, size: int) -> bool:
    """Whether an entry is of this block."""
    return bool(
        entry["full"]
        and entry["key"].tobytes() == key
        and int(entry["group"]) == group
        and int(entry["bytes"]) == size
    )
