"""Where blocks are: slots of segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.kvstore.segment import Segment


class Place(NamedTuple):
    """Where a block is."""

    segment: Segment
    slot: int

    @property
    def order(self) -> tuple[bool, str, int]:
        """All processes keep the lesser of two places of one block: a pinned one first."""
        return not self.segment.is_pinned, self.segment.path.name, self.slot


def runs(places: Sequence[Place]) -> Iterator[tuple[Segment, range]]:
    """Slots that follow each other, in the order of ``places``."""
    first = 0
    for i in range(1, len(places) + 1):
        if (
            i == len(places)
            or places[i].segment is not places[i - 1].segment
            or places[i].slot != places[i - 1].slot + 1
        ):
            yield places[first].segment, range(places[first].slot, places[i - 1].slot + 1)
            first = i
