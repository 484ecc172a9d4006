"""Which blocks are on their way into the pool."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.cache.prefix import Key
from penstock.engine.tiers.fetch import Fetch
from penstock.kvstore.pieces import Wanted


class Coming:
    """So that what many sequences begin with, such as one document that is asked many things at
    once, is read for the first of them alone, and the others wait for that."""

    def __init__(self) -> None:
        self._by_name: dict[tuple[Key, int], Fetch] = {}
        self._names: dict[Fetch, list[tuple[Key, int]]] = {}

    def __len__(self) -> int:
        """How many blocks are on their way."""
        return len(self._by_name)

    def of(self, key: Key, group: int) -> Fetch | None:
        """What brings a block, if anything does."""
        fetch = self._by_name.get((key, group))
        return fetch if fetch is not None and fetch.is_bringing else None

    def add(self, fetch: Fetch, wanted: Iterable[Wanted]) -> None:
        names = [(key, each.group) for each in wanted for key in each.keys]
        self._names[fetch] = names
        for name in names:
            self._by_name[name] = fetch

    def drop(self, fetch: Fetch) -> None:
        """It brings nothing more."""
        for name in self._names.pop(fetch, ()):
            if self._by_name.get(name) is fetch:
                del self._by_name[name]
