"""The tables of a router in native code (``csrc/routing``), where it was built.

All that it does can be done without it, in several times the time: ``tables.py`` has both.
"""

from __future__ import annotations

import importlib
from typing import Final, Protocol, cast

from penstock.routing.books import ReplicaBook, ReportingBook
from penstock.routing.costs import Search
from penstock.routing.holders import Index
from penstock.routing.levels import Levels
from penstock.routing.loads import Loads, LoadWeights


class NativeLevels(Levels, Protocol):
    """Levels that can be changed."""

    def put(self, replica: int, level: int) -> None: ...

    def drop(self, replica: int) -> None: ...


class NativeTables(Protocol):
    """The module. Its classes do what those of the same names do that are written in Python, for at
    most 65,535 replicas and 2^40 tokens a request; a replica that has left has no book any more
    (RuntimeError)."""

    def HolderIndex(self) -> Index: ...

    def LoadLevels(self) -> NativeLevels: ...

    def LoadBook(self, weights: LoadWeights) -> Loads: ...

    def Costs(self, index: Index, loads: Loads) -> Search: ...

    def ReportedBook(self, index: Index, replica: int) -> ReportingBook: ...

    def AssumedBook(self, index: Index, replica: int, capacity: int) -> ReplicaBook: ...


def _load() -> NativeTables | None:
    try:
        return cast(NativeTables, importlib.import_module("penstock.routing._tables"))
    except ImportError:
        return None


native: Final = _load()
"""The module; None where it was not built."""
