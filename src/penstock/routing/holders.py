"""Which replicas hold which blocks.

One number for each key, whose bit ``i`` says that replica ``i`` holds it. The longest prefixes that
a thousand replicas hold of a prompt are found by one walk over its keys, a lookup and an AND of a
thousand bits for each, about 0.15 us together; a tree of prefixes with a set of replicas at each
node would do the same work, and move its nodes at every eviction besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from penstock.routing.levels import Levels, LoadLevels
from penstock.routing.query import Chain, Key


class Holders(NamedTuple):
    """Replicas that hold equally much of a prompt's beginning."""

    held: int
    """Blocks, or tokens."""
    replicas: int
    """A set."""


class Index(Protocol):
    """The holders of each key, as policies ask for them; books keep it true."""

    def __len__(self) -> int:
        """Keys that some replica holds."""
        ...

    @property
    def full(self) -> int:
        """The set of replicas that have given up something for want of room."""
        ...

    @property
    def held(self) -> Levels:
        """Levels in keys that replicas hold."""
        ...

    def holders(self, key: Key) -> int:
        """The set of replicas that hold a key."""
        ...

    def prefixes(self, chain: Chain, among: int) -> Sequence[tuple[int, int]]:
        """The replicas of a set by how many tokens of a chain's beginning they hold, the most
        first.

        Each replica is in one of the entries; of equal numbers there is one entry.
        """
        ...


class HolderIndex:
    """An :class:`Index` of Python's own tables."""

    def __init__(self) -> None:
        self._holders: dict[Key, int] = {}
        self.full = 0
        self._counts: dict[int, int] = {}
        self._held: LoadLevels | None = None

    def __len__(self) -> int:
        return len(self._holders)

    @property
    def held(self) -> LoadLevels:
        """Kept in order from the first time on that somebody asks for it: that costs each report
        about a microsecond."""
        if self._held is None:
            self._held = LoadLevels()
            for replica, count in self._counts.items():
                self._held.put(replica, count)
        return self._held

    def note_held(self, replica: int, count: int | None) -> None:
        """Note how many keys a replica holds; None: it has left."""
        if count is None:
            del self._counts[replica]
            if self._held is not None:
                self._held.drop(replica)
        else:
            self._counts[replica] = count
            if self._held is not None:
                self._held.put(replica, count)

    def holders(self, key: Key) -> int:
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

    def prefixes(self, chain: Chain, among: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        left, get = among, self._holders.get
        for count, key in enumerate(chain.names):
            here = get(key, 0) & left
            if here != left:
                found.append((count * chain.block, left ^ here))
                left = here
                if not left:
                    break
        if left:
            found.append((chain.tokens, left))
        found.reverse()
        return found


def overlaps(index: Index, chains: Sequence[Chain], among: int) -> list[Holders]:
    """The replicas of a set by how many tokens of a prompt they hold, the most first."""
    make = Holders._make
    if len(chains) == 1:
        return list(map(make, index.prefixes(chains[0], among)))
    sets: dict[int, int] = {}
    left = among
    for chain in chains:
        for tokens, replicas in index.prefixes(chain, left):
            if tokens:  # a replica names what it holds in one way
                sets[tokens] = sets.get(tokens, 0) | replicas
                left ^= replicas
    if left:
        sets[0] = left
    return [Holders(tokens, sets[tokens]) for tokens in sorted(sets, reverse=True)]
