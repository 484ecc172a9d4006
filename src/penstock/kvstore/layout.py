"""The bytes of a segment: a head, a table of entries, a table of uses, and slots.

::

    0        SUPER    what the segment is, 64 bytes; never changed
    64       ABOUT    of a pinned prefix what it is (``PinAbout``), in JSON
    2048     CHANGE   a number that grows as entries change, odd while somebody changes some
    2056     USED     a number that is another one when somebody has noted uses
    4096     entries  64 bytes for each slot
             uses     8 bytes for each slot
    data     slots    ``slot_bytes`` each, a multiple of :data:`PAGE`, as is ``data``

An entry says which block is in its slot. It is 0 while there is none, and while one is written; so
whoever reads a slot, and finds the entry afterwards that it knew before, has read that block. Each
entry has a number of its own (``change``), so one that came back is another. All numbers are
little-endian. Entries have a sum of their words: one that a crash or a disk has spoilt counts as
empty. That a slot holds what its entry says is known by the block's CRC-32C.

Uses are hints: the second of the last use, or until which a block is to stay, and how often it was
used. Anybody may write them at any time without a lock; one that is lost, or seen late, costs
nothing but a worse choice of what makes room. USED is drawn at random: whoever writes uses at the
same time as another cannot leave the number that the other leaves.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

VERSION: Final = 1
"""The version of all that this module says. It is part of what names a folder of segments, so other
versions are never read."""
MAGIC: Final = b"penstkKV"
PAGE: Final = 4096
ABOUT_AT: Final = 64
CHANGE_AT: Final = 2048
USED_AT: Final = 2056
ABOUT_BYTES: Final = CHANGE_AT - ABOUT_AT
ENTRIES_AT: Final = PAGE
SUPER: Final = struct.Struct("<8sII16sQQ")
CHANGE: Final = struct.Struct("<Q")
USED: Final = struct.Struct("<Q")

ENTRY: Final = np.dtype(
    [
        ("key", "V16"),
        ("parent", "V16"),
        ("change", "<u8"),
        ("place", "<u4"),
        ("bytes", "<u4"),
        ("crc", "<u4"),
        ("group", "<u2"),
        ("full", "<u2"),
        ("spare", "<u4"),
        ("sum", "<u4"),
    ]
)
USE: Final = np.dtype([("second", "<u4"), ("count", "<u4")])
LAST_SECOND: Final = (1 << 32) - 1
"""The latest that :data:`USE` can say, in 2106; clocks that are not set may be beyond it."""
Entries = NDArray[Any]
"""An array of :data:`ENTRY`."""
Uses = NDArray[Any]
"""An array of :data:`USE`."""

_WORDS: Final = ENTRY.itemsize // 4
# Odd numbers have inverses, so no change of a single word leaves the sum as it was.
_ODD: Final = (np.arange(1, _WORDS, dtype=np.uint32) * np.uint32(0x9E3779B1)) | np.uint32(1)
_SALT: Final = np.uint32(0x50454E53)  # so that the sum of nothing is not 0

assert ENTRY.itemsize == 64


@dataclass(frozen=True)
class SegmentLayout:
    """Where things are in a segment."""

    digest: bytes
    """16 bytes: what the blocks are of (``KvStore``)."""
    slots: int
    slot_bytes: int

    @property
    def uses_at(self) -> int:
        return ENTRIES_AT + self.slots * ENTRY.itemsize

    @property
    def data_at(self) -> int:
        return pages(self.uses_at + self.slots * USE.itemsize)

    @property
    def total_bytes(self) -> int:
        return self.data_at + self.slots * self.slot_bytes

    def slot_at(self, slot: int) -> int:
        return self.data_at + slot * self.slot_bytes

    def entry_at(self, slot: int) -> int:
        return ENTRIES_AT + slot * ENTRY.itemsize

    def head(self, about: bytes = b"") -> bytes:
        """The first bytes of the file. ``about`` has at most :data:`ABOUT_BYTES`."""
        head = SUPER.pack(MAGIC, VERSION, self.slots, self.digest, self.slot_bytes, 0)
        return (head.ljust(ABOUT_AT, b"\0") + about).ljust(PAGE, b"\0")

    @classmethod
    def of_head(cls, head: bytes) -> SegmentLayout | None:
        """What a file says that begins so; None if it is no segment of this version."""
        if len(head) < SUPER.size:
            return None
        magic, version, slots, digest, slot_bytes, spare = SUPER.unpack_from(head)
        if magic != MAGIC or version != VERSION or spare != 0:
            return None
        if not slots or not slot_bytes or slot_bytes % PAGE:
            return None
        return cls(digest, slots, slot_bytes)

    @classmethod
    def of_bytes(cls, digest: bytes, slot_bytes: int, most_bytes: int) -> SegmentLayout | None:
        """The largest segment of at most so many bytes; None if it has no slot."""
        slots = most_bytes // (slot_bytes + ENTRY.itemsize + USE.itemsize)
        while slots > 0:
            layout = cls(digest, slots, slot_bytes)
            if layout.total_bytes <= most_bytes:
                return layout
            slots -= 1
        return None


def pages(size: int) -> int:
    """``size``, rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


def sums(entries: Entries) -> NDArray[np.uint32]:
    """What the ``sum`` of each of the entries must be."""
    words = np.ascontiguousarray(entries).view(np.uint32).reshape(len(entries), _WORDS)
    total: NDArray[np.uint32] = (words[:, :-1] * _ODD).sum(axis=1, dtype=np.uint32)
    return total ^ _SALT


def whole(entries: Entries) -> NDArray[np.bool_]:
    """Which of the entries are of a block, and as they were written."""
    result: NDArray[np.bool_] = (entries["full"] == 1) & (entries["sum"] == sums(entries))
    return result


def same(entries: Entries, others: Entries) -> NDArray[np.bool_]:
    """Which of the entries are equal, byte for byte."""
    parts = [np.ascontiguousarray(each).view(np.uint64) for each in (entries, others)]
    equal: NDArray[np.bool_] = (parts[0] == parts[1]).reshape(len(entries), -1).all(axis=1)
    return equal
