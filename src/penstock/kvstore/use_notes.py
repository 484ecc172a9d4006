"""When blocks were used: what is noted here goes to the segments' tables of uses, and what others
have noted comes from there."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.kvstore.layout import LAST_SECOND, USE, Uses
from penstock.kvstore.segment import Segment


@dataclass(slots=True)
class _Uses:
    """Uses of a slot that were not written yet."""

    second: int
    count: int
    is_new: bool
    """Whether a block came into the slot since: what was noted before was of another."""


class OthersUses(NamedTuple):
    """Slots of which others have noted uses."""

    slots: NDArray[np.intp]
    seconds: NDArray[np.uint32]
    """When the block of each was used last; a time to come where it is to stay until then."""
    again: NDArray[np.bool_]
    """Whether it was asked for, and not only to stay."""


_NONE: Final = OthersUses(np.empty(0, np.intp), np.empty(0, np.uint32), np.empty(0, np.bool_))


class _Seen(NamedTuple):
    """A segment's table, as it was at the last look."""

    mark: int
    uses: Uses


class UseNotes:
    """Uses of slots. They are hints: a use of a block that made room meanwhile is one of the block
    in its place.

    :meth:`use` and :meth:`keep` may be called by any thread, all others by the writer.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._noted: dict[Segment, dict[int, _Uses]] = {}
        self._seen: dict[Segment, _Seen] = {}

    def use(self, segment: Segment, slot: int, second: int) -> None:
        self._note(segment, slot, second, 1)

    def keep(self, segment: Segment, slot: int, until: int) -> None:
        """A block is to stay until a second to come."""
        self._note(segment, slot, until, 0)

    def begin(self, segment: Segment, slots: Mapping[int, float]) -> None:
        """Slots have new blocks, which were never used: each with the second that counts as that of
        its last use."""
        with self._mutex:
            noted = self._noted.setdefault(segment, {})
            noted.update((slot, _Uses(_second(at), 0, True)) for slot, at in slots.items())

    def forget(self, segment: Segment) -> None:
        """A segment is given up."""
        with self._mutex:
            self._noted.pop(segment, None)
        self._seen.pop(segment, None)

    def forget_others(self, segments: Collection[Segment]) -> None:
        """Forget all segments but these: a use may have been noted of another while it was given
        up, whose file would stay open, and keep its room on the disk."""
        with self._mutex:
            for segment in self._noted.keys() - set(segments):
                del self._noted[segment]

    def look(self, segment: Segment) -> Uses:
        """The table of a segment that was not looked at before. Raises OSError."""
        mark = segment.uses_mark()
        self._seen[segment] = _Seen(mark, segment.uses())
        return self._seen[segment].uses

    def exchange(self, segment: Segment) -> OthersUses:
        """Write what was noted of a segment, and return what others have noted since the last look.
        Where neither is anything, one number is read, and no more. Raises OSError."""
        with self._mutex:
            noted = self._noted.pop(segment, {})
        mark, seen = segment.uses_mark(), self._seen.get(segment)
        if seen is None:  # it was made here
            seen = _Seen(0, np.zeros(segment.layout.slots, USE))
        if mark == seen.mark and not noted:
            return _NONE
        # The mark is read before the table: what is noted meanwhile is seen the next time.
        table = segment.uses() if mark != seen.mark else seen.uses.copy()
        before = seen.uses
        slots = np.flatnonzero(table.view("<u8") != before.view("<u8"))
        seconds = table["second"][slots].astype(np.uint32)
        again = table["count"][slots] > before["count"][slots]
        if noted:
            for slot, uses in noted.items():
                if uses.is_new:
                    table[slot] = (uses.second, uses.count)
                else:
                    table["second"][slot] = max(int(table["second"][slot]), uses.second)
                    table["count"][slot] += uses.count
            # Of what others note at this moment, only that of the same slots may be lost.
            mark = segment.put_uses(sorted(noted), table)
        self._seen[segment] = _Seen(mark, table)
        return OthersUses(slots, seconds, again)

    def _note(self, segment: Segment, slot: int, second: int, count: int) -> None:
        with self._mutex:
            noted = self._noted.setdefault(segment, {})
            uses = noted.setdefault(slot, _Uses(0, 0, False))
            uses.second = max(uses.second, _second(second))
            uses.count += count


def _second(at: float) -> int:
    """A time as it can be written."""
    return min(max(int(at), 0), LAST_SECOND)
