"""Which replicas hold which blocks.

One number for each key, whose bit ``i`` says that replica ``i`` holds it. The longest prefixes that
a thousand replicas hold of a prompt are found by one walk over its keys, a lookup and an AND of a
thousand bits for each, about 0.15 us together; a tree of prefixes with a set of replicas at each
node would do the same work, and move its nodes at every eviction besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.routing.query import Key


class Holders(NamedTuple):
    """Replicas that hold equally many blocks of a prompt's beginning."""

    blocks: int
    replicas: int
    """A set."""


class HolderIndex:
    """The holders of each key."""

    def __init__(self) -> None:
        self._holders: dict[Key, int] = {}
        self.full = 0
        """The set of replicas that have given up something for want of room."""

    def __len__(self) -> int:
        """Keys that some replica holds."""
        return len(self._holders)

    def holders(self, key: Key) -> int:
        """The set of replicas that hold a key."""
        return self._holders.get(key, 0)

    def add(self, replica: int, keys: Iterable[Key]) -> None:
        """Note that a replica holds these keys; some may be known."""
        holders, bit = self._holders, 1 << replica
        for key in keys:
            holders[key] = holders.get(key, 0) | bit

    def remove(self, replica: int, keys: Iterable[Key]) -> None:
        """Note that a replica does not hold these keys; some may be known not to be there."""
        holders, bit = self._holders, 1 << replica
        for key in keys:
            held = holders.get(key, 0)
            if held & bit:
                if held == bit:
                    del holders[key]
                else:
                    holders[key] = held ^ bit

    def prefixes(self, keys: Sequence[Key], among: int) -> list[Holders]:
        """The replicas of a set by how many of the first ``keys`` they hold, the most first.

        Each replica is in one of the entries; of equal numbers of blocks there is one entry.
        """
        found: list[Holders] = []
        left, get = among, self._holders.get
        for count, key in enumerate(keys):
            here = get(key, 0) & left
            if here != left:
                found.append(Holders(count, left ^ here))
                left = here
                if not left:
                    break
        if left:
            found.append(Holders(len(keys), left))
        found.reverse()
        return found
