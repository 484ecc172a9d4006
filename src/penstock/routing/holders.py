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
    """Replicas that hold equally much of a prompt's beginning."""

    held: int
    """Blocks, or tokens."""
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
        added = dict.fromkeys(keys, bit)
        for key in added.keys() & holders.keys():
            added[key] = holders[key] | bit
        holders.update(added)

    def remove(self, replica: int, keys: Iterable[Key]) -> None:
        """Note that a replica does not hold these keys; some may be known not to be there."""
        holders, bit = self._holders, 1 << replica
        take = holders.pop
        for key in keys:
            held = take(key, 0)
            if held != bit and held:
                holders[key] = held & ~bit

    def prefixes(self, keys: Sequence[Key], among: int, block: int = 1) -> list[Holders]:
        """The replicas of a set by how many of the first ``keys`` they hold, the most first, each
        of which counts ``block``.

        Each replica is in one of the entries; of equal counts there is one entry.
        """
        found: list[Holders] = []
        left, get = among, self._holders.get
        for count, key in enumerate(keys):
            here = get(key, 0) & left
            if here != left:
                found.append(Holders(count * block, left ^ here))
                left = here
                if not left:
                    break
        if left:
            found.append(Holders(len(keys) * block, left))
        found.reverse()
        return found
