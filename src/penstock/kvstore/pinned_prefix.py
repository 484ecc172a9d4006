"""A pinned prefix: a segment of its own, which holds all of its blocks and nothing else.

So it gives way to nothing, takes as many bytes as its file, and ends with that. What two pinned
prefixes have in common is there twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from penstock.cache.geometry import BLOCK_SIZE
from penstock.cache.prefix import Key
from penstock.errors import StoreError
from penstock.kvstore.about import KindAbout
from penstock.kvstore.blocks import Checksum, NewBlock, entries_of
from penstock.kvstore.folder import StoreFolder
from penstock.kvstore.holdings import Holdings
from penstock.kvstore.layout import LAST_SECOND, SegmentLayout, pages
from penstock.kvstore.segment import Segment

LABEL_BYTES: Final = 500
"""Most bytes of a label."""
_BATCH: Final = 64
"""Blocks that are read and written at once."""


class PinAbout(msgspec.Struct, frozen=True, kw_only=True):
    """What a pinned prefix is said to be."""

    label: str = ""
    tokens: int = 0
    made_at: int = 0
    """Second since 1970."""


def pin(
    folder: StoreFolder,
    held: Holdings,
    keys: Sequence[Key],
    label: str,
    checksum: Checksum,
    now: float | None = None,
) -> bool:
    """Keep a prefix that is on disk from making room; returns whether it was not pinned before.

    Raises StoreError where blocks of it are not there, or are not what their ``checksum`` says, or
    it is too large, and OSError.
    """
    needed = held.needed(keys)
    blocks = held.read(needed, checksum)
    return pin_blocks(folder, held.about, keys[-1], blocks, len(needed), len(keys), label, now)


def pin_blocks(
    folder: StoreFolder,
    about: KindAbout,
    tail: Key,
    blocks: Iterable[NewBlock],
    count: int,
    places: int,
    label: str,
    now: float | None = None,
) -> bool:
    """Pin a prefix whose ``count`` blocks come from elsewhere; otherwise as :func:`pin`. If taking
    a block raises, nothing is pinned."""
    check_label(label)
    second = min(max(int(time.time() if now is None else now), 0), LAST_SECOND)
    facts = PinAbout(label=label, tokens=places * BLOCK_SIZE, made_at=second)
    layout = layout_of(about, count, folder.digest)

    def fill(segment: Segment) -> None:
        slot, batch = 0, []
        with segment.locked():
            for block in blocks:
                batch.append(block)
                if len(batch) == _BATCH:
                    slot = _put(segment, slot, batch)
                    batch = []
            slot = _put(segment, slot, batch)
            if slot != count:
                raise StoreError(f"{slot:,} of {count:,} blocks came")
        uses = segment.uses()
        uses["second"] = second
        segment.put_uses(range(count), uses)

    return folder.pin(tail, layout, msgspec.json.encode(facts), fill)


def layout_of(about: KindAbout, count: int, digest: bytes) -> SegmentLayout:
    """Where things are in the file of a pinned prefix of so many blocks."""
    return SegmentLayout(digest, count, pages(max(about.group_bytes)))


def pin_about(segment: Segment) -> PinAbout:
    """What a pinned prefix is said to be; nothing where that cannot be read. Raises OSError."""
    try:
        return msgspec.json.decode(segment.about(), type=PinAbout)
    except msgspec.DecodeError:
        return PinAbout()


def check_label(label: str) -> None:
    """Raises StoreError for what is no label."""
    if len(label.encode("utf-8", "surrogatepass")) > LABEL_BYTES or not label.isprintable():
        raise StoreError(
            f"a label is a line of at most {LABEL_BYTES} bytes, without control characters"
        )


def _put(segment: Segment, slot: int, blocks: Sequence[NewBlock]) -> int:
    """Write blocks into the slots from ``slot`` on; returns the next one."""
    if not blocks:
        return slot
    end = slot + len(blocks)
    if end > segment.layout.slots:
        raise StoreError("more blocks came than were told of")
    segment.put(range(slot, end), entries_of(blocks), [each.data for each in blocks])
    return end
