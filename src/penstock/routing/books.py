"""What one replica holds: as it reports, or as is assumed of what it was sent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Protocol

from penstock.routing.holders import HolderIndex
from penstock.routing.query import Chain, Key, Keys, split_keys


class ReplicaBook(Protocol):
    """Keeps an index true to one replica."""

    def begin(self, chain: Chain) -> None:
        """A request with these keys was sent there; whoever follows will find them."""

    def end(self, chain: Chain) -> None:
        """That request has ended, whatever way."""

    def clear(self) -> None:
        """The replica holds nothing any more, as after its restart."""

    def leave(self) -> None:
        """There is no such replica any more."""

    @property
    def held(self) -> int:
        """How many keys it holds."""
        ...

    def keys(self) -> Keys:
        """The keys that it holds, in no order."""
        ...


class ReportingBook(ReplicaBook, Protocol):
    """The book of a replica that reports what it holds."""

    def change(self, added: Keys, removed: Keys) -> None:
        """Note what the replica reports: blocks that can be found now, and those that cannot any
        more. No key is in both."""

    def replace(self, held: Keys) -> None:
        """Note all that the replica holds, whatever was known before."""


class ReportedBook:
    """The cache of a replica that reports what it holds, in Python's own tables.

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
        index.note_held(replica, 0)

    @property
    def held(self) -> int:
        return len(self._held)

    def keys(self) -> Keys:
        return b"".join(self._held)

    def begin(self, chain: Chain) -> None:
        names, expected, again = chain.names, self._expected, self._again
        for key in expected.intersection(names):
            again[key] = again.get(key, 0) + 1
        expected.update(names)
        self._index.add(self._replica, names)

    def end(self, chain: Chain) -> None:
        again, ended = self._again, set(chain.names)
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

    def change(self, added: Keys, removed: Keys) -> None:
        self._change(split_keys(added), split_keys(removed))

    def replace(self, held: Keys) -> None:
        now = set(split_keys(held))
        self._change(now - self._held, self._held - now)
        self._index.full &= ~(1 << self._replica)

    def _change(self, added: Collection[Key], removed: Collection[Key]) -> None:
        self._held.update(added)
        new = set(added) - self._expected  # what was expected is in the index
        if new:
            self._index.add(self._replica, new)
        if removed:
            self._held.difference_update(removed)
            self._index.full |= 1 << self._replica
            self._index.remove(self._replica, set(removed) - self._expected)
        self._index.note_held(self._replica, len(self._held))

    def clear(self) -> None:
        self.replace(b"")

    def leave(self) -> None:
        self.clear()
        self._index.remove(self._replica, self._expected)
        self._index.note_held(self._replica, None)


class AssumedBook:
    """The cache of a replica that reports nothing: what it was sent last, up to a capacity; in
    Python's own tables.

    Of a prompt the last keys are the least recently used, as in a cache that gives up a chain's
    tail before its head.
    """

    def __init__(self, index: HolderIndex, replica: int, capacity: int) -> None:
        """``capacity``: keys that the replica is assumed to hold."""
        self._index = index
        self._replica = replica
        self._capacity = capacity
        self._used: OrderedDict[Key, None] = OrderedDict()
        index.note_held(replica, 0)

    def begin(self, chain: Chain) -> None:
        used = self._used
        touch = used.move_to_end
        names = chain.names[: self._capacity]
        for key in reversed(names):
            used[key] = None
            touch(key)
        self._index.add(self._replica, names)
        surplus = len(used) - self._capacity
        if surplus > 0:
            self._index.full |= 1 << self._replica
            self._index.remove(self._replica, [used.popitem(last=False)[0] for _ in range(surplus)])
        self._index.note_held(self._replica, len(used))

    @property
    def held(self) -> int:
        return len(self._used)

    def keys(self) -> Keys:
        return b"".join(self._used)

    def end(self, chain: Chain) -> None:
        """What was computed stays."""

    def clear(self) -> None:
        self._index.remove(self._replica, self._used)
        self._index.full &= ~(1 << self._replica)
        self._used.clear()
        self._index.note_held(self._replica, 0)

    def leave(self) -> None:
        self.clear()
        self._index.note_held(self._replica, None)
