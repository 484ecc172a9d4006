"""What is read for one sequence, and how far that is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from penstock.cache.prefix import Key
from penstock.kvstore.workers import Piece
from penstock.scheduler.sequence import SequenceState


@dataclass(eq=False)
class Fetch:
    """The blocks of one sequence that are on disk and not in the pool."""

    sequence: SequenceState
    number: int
    keys: list[Key]
    """Those of the prefix that it will have."""
    found: int
    """Blocks of it that the pool had, of groups without a window."""
    bytes: int
    unread: int
    """Those of its bytes that have not come."""
    began: float
    staged: deque[Piece] = field(default_factory=deque)
    """What has come and is not in the cache."""
    adopted: int = 0
    """Blocks that were put into the cache, of all groups."""
    restored: int = 0
    """How many of these are of the first group without a window: the prefix became longer by so
    many blocks."""
    is_short: bool = False
    """Whether not all came, or not in time."""
    aside_until: float | None = None
    """Set while its turn has come and it is set aside: when it will wait no longer."""

    @property
    def has_come(self) -> bool:
        return self.unread == 0
