"""What policies know, and what they break ties by."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from penstock.routing.holders import HolderIndex, Holders
from penstock.routing.loads import LoadBook
from penstock.routing.query import Query

_SESSIONS: Final = 1 << 16
"""Sessions whose replicas are remembered."""


class Known:
    """What policies may know: who holds what, and the loads."""

    def __init__(self, index: HolderIndex, loads: LoadBook) -> None:
        self.index = index
        self.loads = loads

    def overlaps(self, query: Query, among: int) -> list[Holders]:
        """The replicas of a set by how many tokens of the prompt they hold, the most first."""
        if len(query.chains) == 1:
            chain = query.chains[0]
            return self.index.prefixes(chain.keys, among, chain.block)
        sets: dict[int, int] = {}
        left = among
        for chain in query.chains:
            for tokens, replicas in self.index.prefixes(chain.keys, left, chain.block):
                if tokens:  # a replica names what it holds in one way
                    sets[tokens] = sets.get(tokens, 0) | replicas
                    left ^= replicas
        if left:
            sets[0] = left
        return [Holders(tokens, sets[tokens]) for tokens in sorted(sets, reverse=True)]

    def cached(self, query: Query, replica: int) -> int:
        """Tokens of the prompt that one replica holds."""
        return self.overlaps(query, 1 << replica)[0].held


class Turns:
    """Breaks ties."""

    def __init__(self) -> None:
        self._next = 0

    def first(self, among: int) -> int:
        """The first replica of a set, from the place behind the last one that was returned."""
        behind = among >> self._next << self._next
        chosen = behind or among
        replica = (chosen & -chosen).bit_length() - 1
        self._next = replica + 1
        return replica


class Sessions:
    """Where the latest request of each session went, of the latest sessions."""

    def __init__(self) -> None:
        self._last: OrderedDict[Hashable, int] = OrderedDict()

    def last(self, session: Hashable | None) -> int | None:
        return None if session is None else self._last.get(session)

    def went(self, session: Hashable | None, replica: int) -> None:
        if session is None:
            return
        self._last[session] = replica
        self._last.move_to_end(session)
        if len(self._last) > _SESSIONS:
            self._last.popitem(last=False)
