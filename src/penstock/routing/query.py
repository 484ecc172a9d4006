"""A request as routers see it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

Key = Hashable
"""The name of a block's content and of all before it: equal keys, equal beginnings."""


@dataclass(frozen=True, slots=True)
class Chain:
    """The keys of a prompt's full blocks, one after the other, each of ``block`` tokens."""

    keys: Sequence[Key]
    block: int


@dataclass(frozen=True, slots=True)
class Query:
    """One request that needs a replica.

    It has a chain for each way in which replicas name what they hold: of those that report the
    blocks of their caches these, of others pieces of the text. Keys of different ways never meet.
    """

    chains: tuple[Chain, ...]
    tokens: int
    """Those of the prompt, at least as many as the longest chain has."""
    session: Hashable | None = None
    """What the requests of a conversation have in common, if the client names it."""


def bits(replicas: int) -> Iterator[int]:
    """The numbers of the replicas in a set, in ascending order."""
    while replicas:
        lowest = replicas & -replicas
        yield lowest.bit_length() - 1
        replicas ^= lowest
