"""What the tier asks of the disk: its store and the threads that read and write it, or in a
simulation what stands in their place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.cache.prefix import Key
from penstock.kvstore.blocks import NewBlock
from penstock.kvstore.workers import Piece, Wanted


class DiskStats(NamedTuple):
    """What the disk has, and did so far."""

    blocks: int
    pinned: int
    """Blocks that never make room."""
    unwritten_bytes: int
    """Those of blocks that wait to be written."""
    evicted: int
    """Blocks that made room."""
    written_bytes: int
    read_bytes: int
    read_seconds: float
    failures: int
    """Reads and writes that failed."""


class Disk(Protocol):
    """As :class:`penstock.engine.tiers.station.StoredBlocks` has it."""

    def holds(self, key: Key, group: int) -> bool: ...

    def use(self, keys: Sequence[Key], group: int) -> None:
        """Note that these blocks are asked for, wherever they were found."""

    def keep(self, keys: Sequence[Key], seconds: float) -> None:
        """Let the blocks of a chain make room after all others for so long."""

    @property
    def room(self) -> int:
        """Bytes that may be given to :meth:`write` now."""
        ...

    def write(self, blocks: Sequence[NewBlock]) -> None: ...

    def drop(self, keys: Sequence[Key], group: int) -> None: ...

    def read(self, number: int, pieces: Sequence[Wanted]) -> None: ...

    def cancel(self, number: int) -> None: ...

    def done(self, piece: Piece) -> None:
        """The bytes of a piece are not needed any more."""

    def arrived(self) -> Sequence[Piece]:
        """What has been read since the last time."""
        ...

    @property
    def has_arrived(self) -> bool: ...

    def wait(self, seconds: float) -> None:
        """Wait until something has arrived, for so long at most."""

    def clear(self) -> None:
        """Remove all blocks."""

    @property
    def is_off(self) -> bool:
        """Whether nothing will ever be written again."""
        ...

    def stats(self) -> DiskStats: ...

    def close(self, seconds: float) -> None:
        """End it. What waits to be written may take so many seconds."""
