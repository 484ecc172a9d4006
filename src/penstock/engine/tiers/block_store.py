"""What the tiers ask of a store below the pool: memory of the host, a disk with the threads that
read and write it, or in a simulation what stands in their place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.cache.prefix import Key
from penstock.interface.blocks import Bytes
from penstock.interface.messages import TierName
from penstock.kvstore.blocks import NewBlock
from penstock.kvstore.pieces import Piece, Wanted


class StoreFigures(NamedTuple):
    """What a store has, and did so far."""

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
    damaged: int
    """Blocks that were read, and were not what they had been, where the store looks at that."""
    failures: int
    """Reads and writes that failed."""


class Due(NamedTuple):
    """A block to save, of every group of layers that has it."""

    parent: Key
    """The key of the block before it, or the root of its chain."""
    place: int
    """Its position in its chain, from 0."""
    key: Key


class BlockStore(Protocol):
    """Blocks below the pool, by the keys of their content. For the engine's thread."""

    @property
    def name(self) -> TierName: ...

    @property
    def lasts(self) -> bool:
        """Whether its blocks outlive the engine."""
        ...

    def holds(self, key: Key, group: int) -> bool: ...

    def use(self, keys: Sequence[Key], group: int) -> None:
        """Note that these blocks are asked for, wherever they were found."""

    def keep(self, keys: Sequence[Key], seconds: float) -> None:
        """Let the blocks of a chain make room after all others for so long."""

    @property
    def room(self) -> int:
        """Bytes that may be given to :meth:`write` now."""
        ...

    def reserve(self, due: Sequence[Due], group: int) -> Sequence[Bytes] | None:
        """Reserve memory for copies of blocks that the store does not hold, for which others make
        room; there may be enough for the first ones only. None: copies may lie anywhere. What was
        reserved is given to :meth:`write`, or to :meth:`release`."""
        ...

    def release(self, due: Sequence[Due], group: int) -> None:
        """Give back the memory of blocks that will not come."""

    def write(self, blocks: Sequence[NewBlock]) -> None: ...

    def drop(self, keys: Sequence[Key], group: int) -> None:
        """Find blocks no longer that are damaged."""

    def read(self, number: int, pieces: Sequence[Wanted]) -> None: ...

    def cancel(self, number: int) -> None: ...

    def done(self, piece: Piece, seconds: float = 0.0) -> None:
        """The bytes of a piece are not needed any more; ``seconds``: what copying them into the
        pool took, where that is measured."""

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

    def stats(self) -> StoreFigures: ...

    def close(self, seconds: float) -> None:
        """End it. What waits to be written may take so many seconds."""
