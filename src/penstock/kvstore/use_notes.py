"""When blocks were used, until the segments' tables of uses have it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.kvstore.segment import Segment


@dataclass(slots=True)
class _Uses:
    """Uses of a slot that were not written yet."""

    second: int
    count: int
    is_new: bool
    """Whether a block came into the slot since: what was noted before was of another."""


class UseNotes:
    """Uses of slots that were not written yet; any thread. They are hints: a use of a block that
    made room meanwhile is one of the block in its place."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._noted: dict[Segment, dict[int, _Uses]] = {}

    def use(self, segment: Segment, slot: int, second: int) -> None:
        with self._mutex:
            noted = self._noted.setdefault(segment, {})
            uses = noted.setdefault(slot, _Uses(0, 0, False))
            uses.second = max(uses.second, second)
            uses.count += 1

    def begin(self, segment: Segment, slots: Mapping[int, float]) -> None:
        """Slots have new blocks, which were never used: each with the second that counts as that of
        its last use."""
        with self._mutex:
            noted = self._noted.setdefault(segment, {})
            noted.update((slot, _Uses(int(second), 0, True)) for slot, second in slots.items())

    def forget(self, segment: Segment) -> None:
        """A segment is given up."""
        with self._mutex:
            self._noted.pop(segment, None)

    def save(self) -> None:
        """Write what was noted. Raises OSError."""
        with self._mutex:
            noted, self._noted = self._noted, {}
        for segment, slots in noted.items():
            table = segment.uses()
            for slot, uses in slots.items():
                if uses.is_new:
                    table[slot] = (uses.second, uses.count)
                else:
                    table["second"][slot] = max(int(table["second"][slot]), uses.second)
                    table["count"][slot] += uses.count
            segment.set_uses(table)
