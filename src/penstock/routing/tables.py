"""What a router keeps its knowledge in: native code where that was built, else Python's tables.

Both choose the same replicas for the same requests: property tests hold them against each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from penstock.routing.books import AssumedBook, ReplicaBook, ReportedBook, ReportingBook
from penstock.routing.costs import Costs, Search
from penstock.routing.holders import HolderIndex, Index
from penstock.routing.loads import LoadBook, Loads, LoadWeights
from penstock.routing.native import native


@dataclass(frozen=True)
class Tables:
    """The tables of one router."""

    index: Index
    loads: Loads
    search: Search
    reported: Callable[[int], ReportingBook]
    """Makes the book of a replica, by its number, that reports what it holds."""
    assumed: Callable[[int, int], ReplicaBook]
    """Makes that of one which does not, by its number and the keys that it is assumed to hold."""


MakeTables = Callable[[LoadWeights], Tables]


def plain_tables(weights: LoadWeights) -> Tables:
    """Tables that are written in Python."""
    index, loads = HolderIndex(), LoadBook(weights)
    search = Costs(index, loads)
    return Tables(index, loads, search, partial(ReportedBook, index), partial(AssumedBook, index))


def best_tables(weights: LoadWeights) -> Tables:
    """The fastest that there are."""
    if native is None:
        return plain_tables(weights)
    index, loads = native.HolderIndex(), native.LoadBook(weights)
    return Tables(
        index,
        loads,
        native.Costs(index, loads),
        partial(native.ReportedBook, index),
        partial(native.AssumedBook, index),
    )
