"""When a store grows, and by how much."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Final

from penstock.kvstore.folder import NO_ROOM, StoreFolder
from penstock.kvstore.layout import SegmentLayout
from penstock.kvstore.segment import Segment

FREE_SHARE: Final = 0.25
"""The part of the disk's free room that a new segment takes at most: so a disk with less room than
the limit is filled by and by, and not refused the first segment."""
FULL_S: Final = 60.0
"""Seconds for which a store does not grow after the disk was full."""
_SEGMENTS: Final = 32
"""About as many segments a store has when it is full: so little gives way at once where another
kind of blocks needs room, and few files are open."""
_LEAST_SLOTS: Final = 16


class Growth:
    """Makes the segments of a store, as far as the limit and the disk allow. One thread's."""

    def __init__(
        self, folder: StoreFolder, slot_bytes: int, limit: int, now: Callable[[], float]
    ) -> None:
        """``limit``: most bytes of all segments."""
        self._folder = folder
        self._now = now
        most = min(max(limit // _SEGMENTS, _LEAST_SLOTS * slot_bytes), limit)
        self._layout = SegmentLayout.of_bytes(folder.digest, slot_bytes, most)
        self._again_at = -math.inf

    @property
    def fits(self) -> bool:
        """Whether the limit holds any block at all."""
        return self._layout is not None

    @property
    def is_cramped(self) -> bool:
        """Whether the disk had no room for a segment that the limit allows."""
        return self._again_at > -math.inf

    def segment(self, is_needed: bool) -> Segment | None:
        """A new segment; None where the store's own blocks must make room instead.

        ``is_needed``: the store has no block that could. Raises OSError where the disk is full
        then, and where files cannot be made.
        """
        layout = self._layout
        if layout is None or self._now() < self._again_at:
            return None
        least = min(layout.slots, _LEAST_SLOTS)
        free = int(self._folder.free_bytes() * FREE_SHARE)
        if layout.total_bytes > free:
            smaller = SegmentLayout.of_bytes(layout.digest, layout.slot_bytes, free)
            slots = max(least, 0 if smaller is None else smaller.slots)
            layout = dataclasses.replace(layout, slots=slots)
        try:
            return self._folder.make(layout)
        except OSError as error:
            if error.errno not in NO_ROOM or is_needed:
                raise
            self._again_at = self._now() + FULL_S
            return None
