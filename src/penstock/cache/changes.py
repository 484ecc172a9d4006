"""What can be found in a cache, and how that changed: for those who follow it from elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final, NamedTuple

Key = bytes
"""As in ``cache/prefix.py``, which imports this module."""
KEPT: Final = 1 << 16
"""Changes that are kept: those of two million tokens at 32 a block. Who asks less often is given
all keys."""


class CacheChanges(NamedTuple):
    """What a follower must do to know the keys that can be found."""

    since: int | None
    """The position that the changes follow; None: ``added`` are all keys there are."""
    until: int
    """The follower's next position."""
    added: list[Key]
    removed: list[Key]
    """No key is in both, and the order is of no meaning."""


class ChangeLog:
    """The latest changes of a set of keys, each with its number, its *position*."""

    def __init__(self, kept: int = KEPT) -> None:
        self._changes: deque[tuple[Key, bool]] = deque(maxlen=kept)
        self._until = 0
        self._start = 0  # what was before cannot be followed

    def add(self, key: Key) -> None:
        """Note that a key can be found now, which could not."""
        self._changes.append((key, True))
        self._until += 1

    def remove(self, keys: Iterable[Key]) -> None:
        """Note that these keys can be found no more, which could."""
        for key in keys:
            self._changes.append((key, False))
            self._until += 1

    def clear(self) -> None:
        """Note that no key can be found any more."""
        self._changes.clear()
        self._until += 1
        self._start = self._until

    def after(self, position: int | None, keys: Collection[Key]) -> CacheChanges:
        """What has changed since a follower was at a position; None: it knows nothing.

        ``keys`` are all that can be found now, which it gets where the changes that it lacks are
        not kept any more, or the position is none of this log.
        """
        until = self._until
        oldest = max(until - len(self._changes), self._start)
        if position is None or not oldest <= position <= until:
            return CacheChanges(None, until, list(keys), [])
        last: dict[Key, bool] = {}
        first: dict[Key, bool] = {}
        begin = len(self._changes) - (until - position)
        for key, added in islice(self._changes, begin, None):
            first.setdefault(key, added)
            last[key] = added
        # A key that came and went again, or the other way round, is as it was.
        net = {key: added for key, added in last.items() if first[key] == added}
        return CacheChanges(
            position,
            until,
            [key for key, added in net.items() if added],
            [key for key, added in net.items() if not added],
        )
