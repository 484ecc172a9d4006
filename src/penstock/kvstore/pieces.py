"""What a store is asked to read at once, and what comes back."""

from __future__ import annotations

from typing import NamedTuple

from penstock.cache.prefix import Key
from penstock.interface.blocks import BlockBytes, BlockContent, Bytes


class Wanted(NamedTuple):
    """Blocks of one group of layers to read."""

    group: int
    places: tuple[int, ...]
    """Their numbers in their chain."""
    keys: tuple[Key, ...]
    store: int = 0
    """The number of the store that has them, of those below the pool."""


class Piece(NamedTuple):
    """Blocks that were read: all that were wanted, or those before the first that is gone."""

    number: int
    """The number by which whoever wanted them knows the request."""
    wanted: Wanted
    found: int
    """How many there are."""
    content: BlockContent
    seconds: float
    """What reading took. Where several pieces were read at the same time, each second is counted
    for one of them. 0 for what was in memory."""
    busy_s: float
    """CPU seconds of the thread that read it."""
    memory: Bytes | None = None
    """What ``content`` is a view of, if it is to be given back when the piece is done."""
    slots: tuple[int, ...] = ()
    """Where ``content`` lies, of a store in memory, which keeps it there until it is done."""

    @property
    def num_bytes(self) -> int:
        """Bytes of what there is."""
        if isinstance(self.content, BlockBytes):
            return len(self.content.data)
        return sum(map(len, self.content.rows))
