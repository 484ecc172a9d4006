"""What policies know, and what they break ties by."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from penstock.routing.costs import Costs
from penstock.routing.holders import Holders, overlaps
from penstock.routing.query import Query
from penstock.routing.tables import Tables

_SESSIONS: Final = 1 << 16
"""Sessions whose replicas are remembered."""


class Known:
    """What policies may know: who holds what, the loads, and what a request costs."""

    def __init__(self, tables: Tables) -> None:
        self.index = tables.index
        self.loads = tables.loads
        self.search = tables.search
        self.costs = Costs(tables.index, tables.loads)

    def overlaps(self, query: Query, among: int) -> list[Holders]:
        """The replicas of a set by how many tokens of the prompt they hold, the most first."""
        return overlaps(self.index, query.chains, among)

    def cached(self, query: Query, replica: int) -> int:
        """Tokens of the prompt that one replica holds."""
        return overlaps(self.index, query.chains, 1 << replica)[0].held


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
