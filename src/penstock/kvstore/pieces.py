"""What is asked of a store at once, and what comes of it."""

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
    """What reading took. Of pieces that are read at the same time, each has a part of it. 0 of what
    is there already."""
    busy_s: float
    """Seconds of a core that it took."""
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
