"""What is read for one sequence, how much of it has come, and what others wait for of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Final

from penstock.cache.prefix import Key
from penstock.interface.buckets import Buckets
from penstock.kvstore.pieces import Piece, Wanted
from penstock.scheduler.sequence import SequenceState

FETCH_SECONDS: Final = tuple(m * 10.0**e for e in range(-3, 2) for m in (1, 2, 5))
"""Bounds of intervals, from 1 ms to 50 s."""
_MOST_DOUBLINGS: Final = 20


@dataclass(eq=False)
class Fetch:
    """The blocks of one sequence's prefix that are read from stores into the pool."""

    sequence: SequenceState
    number: int
    keys: list[Key]
    """Those of the prefix that it will have."""
    found: int
    """Blocks of it that the pool had, of groups without a window."""
    bytes: int
    """What it reads itself."""
    unread: list[int]
    """Those of its bytes that have not come from each store."""
    stores: frozenset[int]
    """The numbers of the stores that these come from."""
    began: float
    calm_s: float
    """Seconds after :attr:`turn_at` during which its blocks are put so slowly that others' steps
    take hardly longer; more than 0."""
    patience_s: float
    """Seconds after :attr:`turn_at` until it is given up, and what has not come is computed."""
    behind: list[Awaited] = field(default_factory=list)
    """Pieces of its prefix that are read for other sequences, which it waits for besides what it
    reads itself; those that come first are at the end."""
    unasked: deque[Wanted] = field(default_factory=deque)
    """What no store was asked for yet."""
    in_flight: int = 0
    """Bytes that stores were asked for, and that have not come."""
    staged: deque[Piece] = field(default_factory=deque)
    """What has come and is not in the cache."""
    lacks_room: bool = False
    """Whether the cache has no room for the first of these."""
    landing: int = 0
    """Pieces that can be found in the cache, while a device still copies them into its memory."""
    adopted: int = 0
    """Blocks that were put into the cache, of all groups."""
    restored: list[int] = field(default_factory=list)
    """How many of these from each store are of the first group without a window: the prefix became
    longer by so many blocks."""
    is_short: bool = False
    """Whether not all came, or not in time."""
    turn_at: float | None = None
    """When its turn came first, or that of a sequence that waits for what it brings."""
    is_aside: bool = False
    """Whether its turn has come, and it waits for blocks."""
    aside_s: float | None = None
    """Seconds from its turn to when it waited for no more blocks; None before that."""

    @property
    def has_come(self) -> bool:
        """Whether it waits for nothing more, since all has come or it was given up."""
        return not any(self.unread) and not self.behind

    @property
    def staged_bytes(self) -> int:
        return sum(piece.num_bytes for piece in self.staged)

    def set_aside(self, now: float) -> None:
        """Its turn has come, and so has that of whatever it waits for."""
        self.is_aside = True
        for fetch in (self, *(each.fetch for each in self.behind)):
            if fetch.turn_at is None:
                fetch.turn_at = now

    def come_back(self, now: float) -> None:
        """It waits for no more blocks, perhaps for room in the cache."""
        self.is_aside = False
        if self.turn_at is not None:
            self.aside_s = now - self.turn_at

    def go_on_from(self, before: Fetch, now: float) -> None:
        """Take the place of ``before``, whose sequence has lost blocks while it waited in line for
        room. Its patience is that of the whole prefix, and does not begin anew; the time in line
        is no part of it."""
        self.patience_s = max(self.patience_s, before.patience_s)
        if before.aside_s is not None:
            self.turn_at = now - before.aside_s

    def pass_over_what_came(self) -> None:
        """Wait no longer for pieces of other sequences that have come, or will not come."""
        while self.behind and not self.behind[-1].is_coming:
            self.behind.pop()

    def waits_for(self, store: int) -> bool:
        """Whether it reads from a store, or waits for what others read there."""
        return store in self.stores or any(
            each.wanted.store == store for each in self.behind if each.is_coming
        )

    def haste(self, now: float) -> float:
        """How many times as much of others' steps it may take as at first: twice as much with each
        ``calm_s`` that it has waited beyond the first."""
        if self.turn_at is None:
            return 1.0
        return float(2.0 ** min(max((now - self.turn_at) / self.calm_s - 1, 0.0), _MOST_DOUBLINGS))

    def is_over(self, now: float) -> bool:
        """Whether computing would be as good by now."""
        return self.turn_at is not None and now >= self.turn_at + self.patience_s


@dataclass(eq=False)
class Awaited:
    """A piece that is read for one sequence, and that others may wait for, too."""

    fetch: Fetch
    """What it is read for."""
    wanted: Wanted
    has_arrived: bool = False
    """Whether its store has read it."""
    is_there: bool = False
    """Whether it is in the cache's memory, where it may have been overwritten since."""

    @property
    def is_coming(self) -> bool:
        """Whether it will be in the cache, and is not yet. One that has been read, and for which
        there is no room until others end, is not waited for: who needs less of it may have room."""
        if self.is_there or self.fetch.is_short:
            return False
        return not (self.has_arrived and self.fetch.lacks_room)


@dataclass
class Restored:
    """What was read from one store."""

    fetches: int = 0
    declined: int = 0
    """Sequences for which computing was faster."""
    tokens: int = 0
    """Tokens of prefixes that became longer."""
    saved_s: float = 0.0
    """Seconds that computing these would have taken, by the rate of the time."""
    fetch_seconds: Buckets = field(default_factory=lambda: Buckets.empty(FETCH_SECONDS))
    """Seconds from the look at the stores until all blocks of a sequence had come."""


def bytes_ahead(
    sizes: Sequence[int],
    behind: Iterable[Awaited],
    fetches: Collection[Fetch],
    size_of: Callable[[Wanted], int],
) -> tuple[list[int], list[int]]:
    """The bytes that have to come from each store for a sequence that would read ``sizes`` itself
    and wait for the pieces that it would be ``behind``, and those that come before them, of the
    ``fetches`` that there are. ``size_of`` gives the bytes of a piece."""
    shared = [0] * len(sizes)
    first: dict[int, int] = {}
    """The number of the first fetch that reads such a piece from a store."""
    for piece in behind:
        if not piece.has_arrived:
            store, number = piece.wanted.store, piece.fetch.number
            shared[store] += size_of(piece.wanted)
            first[store] = min(first.get(store, number), number)
    before = []
    for store, size in enumerate(sizes):
        if size:  # what it reads itself comes after all that others wait for
            unread = sum(each.unread[store] for each in fetches) - shared[store]
        else:
            end = first.get(store, 0)
            unread = sum(each.unread[store] for each in fetches if each.number < end)
        before.append(unread)
    return [*map(add, sizes, shared)], before
