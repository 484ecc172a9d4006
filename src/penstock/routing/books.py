"""What one replica holds: as it reports, or as is assumed of what it was sent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol

from penstock.routing.holders import HolderIndex
from penstock.routing.query import Key


class ReplicaBook(Protocol):
    """Keeps a :class:`HolderIndex` true to one replica."""

    def begin(self, keys: Sequence[Key]) -> None:
        """A request with these keys was sent there; whoever follows will find them."""

    def end(self, keys: Sequence[Key]) -> None:
        """That request has ended, whatever way."""

    def clear(self) -> None:
        """The replica holds nothing any more, as after its restart."""

    def leave(self) -> None:
        """There is no such replica any more."""

    @property
    def held(self) -> int:
        """Keys that it holds."""


class ReportedBook:
    """The cache of a replica that reports what it holds.

    A block is found once it is computed, and reported a moment later. Until then it is *expected*:
    from the time a request is sent to the end of that request. What was expected and never came
    (the request failed, or was aborted) is forgotten with it.
    """

    def __init__(self, index: HolderIndex, replica: int) -> None:
        self._index = index
        self._replica = replica
        self._held: set[Key] = set()
        self._expected: set[Key] = set()
        self._again: dict[Key, int] = {}
        """How many open requests have a key besides the first, where that are any."""

    @property
    def held(self) -> int:
        return len(self._held)

    def begin(self, keys: Sequence[Key]) -> None:
        expected, again = self._expected, self._again
        for key in expected.intersection(keys):
            again[key] = again.get(key, 0) + 1
        expected.update(keys)
        self._index.add(self._replica, keys)

    def end(self, keys: Sequence[Key]) -> None:
        again, ended = self._again, set(keys)
        for key in again.keys() & ended:
            ended.remove(key)
            if again[key] > 1:
                again[key] -= 1
            else:
                del again[key]
        self._expected -= ended
        lost = ended - self._held
        if lost:
            self._index.remove(self._replica, lost)

    def change(self, added: Sequence[Key], removed: Sequence[Key]) -> None:
        """Note what the replica reports: blocks that can be found now, and those that cannot any
        more. No key is in both."""
        self._held.update(added)
        new = set(added) - self._expected  # what was expected is in the index
        if new:
            self._index.add(self._replica, new)
        if removed:
            self._held.difference_update(removed)
            self._index.full |= 1 << self._replica
            self._index.remove(self._replica, set(removed) - self._expected)

    def replace(self, held: Iterable[Key]) -> None:
        """Note all that the replica holds, whatever was known before."""
        now = set(held)
        self.change(list(now - self._held), list(self._held - now))
        self._index.full &= ~(1 << self._replica)

    def clear(self) -> None:
        self.replace(())

    def leave(self) -> None:
        self.clear()
        self._index.remove(self._replica, self._expected)


class AssumedBook:
    """The cache of a replica that reports nothing: what it was sent last, up to a capacity.

    Of a prompt the last keys are the least recently used, as in a cache that gives up a chain's
    tail before its head.
    """

    def __init__(self, index: HolderIndex, replica: int, capacity: int) -> None:
        """``capacity``: keys that the replica is assumed to hold."""
        self._index = index
        self._replica = replica
        self._capacity = capacity
        self._used: OrderedDict[Key, None] = OrderedDict()

    def begin(self, keys: Sequence[Key]) -> None:
        used = self._used
        touch = used.move_to_end
        keys = keys[: self._capacity]
        for key in reversed(keys):
            used[key] = None
            touch(key)
        self._index.add(self._replica, keys)
        surplus = len(used) - self._capacity
        if surplus > 0:
            self._index.full |= 1 << self._replica
            self._index.remove(self._replica, [used.popitem(last=False)[0] for _ in range(surplus)])

    @property
    def held(self) -> int:
        return len(self._used)

    def end(self, keys: Sequence[Key]) -> None:
        """What was computed stays."""

    def clear(self) -> None:
        self._index.remove(self._replica, self._used)
        self._index.full &= ~(1 << self._replica)
        self._used.clear()

    def leave(self) -> None:
        self.clear()
