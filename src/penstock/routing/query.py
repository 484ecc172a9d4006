"""A request as routers see it."""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final

Key = bytes
"""The name of a block's content and of all before it, of ``KEY_BYTES``: equal keys, equal
beginnings."""
Keys = bytes
"""Keys one behind the other, as they come from servers."""
KEY_BYTES: Final = 16
_KEY: Final = struct.Struct(f"{KEY_BYTES}s")


@dataclass(frozen=True, slots=True)
class Chain:
    """The keys of a prompt's full blocks, one after the other, each of ``block`` tokens."""

    keys: Keys
    block: int
    _names: list[Key] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def names(self) -> list[Key]:
        """The keys one by one, for tables that are written in Python. Raises ValueError where one
        is cut off."""
        if self._names is None:
            object.__setattr__(self, "_names", split_keys(self.keys))
        assert self._names is not None
        return self._names

    @property
    def tokens(self) -> int:
        """Those of all its blocks."""
        return len(self.keys) // KEY_BYTES * self.block


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


def split_keys(joined: Keys) -> list[Key]:
    """Keys that stand one behind the other. Raises ValueError where one is cut off."""
    if len(joined) % KEY_BYTES:
        raise ValueError(f"keys have {KEY_BYTES} bytes each, one behind the other")
    return [key for (key,) in _KEY.iter_unpack(joined)]


def bits(replicas: int) -> Iterator[int]:
    """The numbers of the replicas in a set, in ascending order."""
    while replicas:
        lowest = replicas & -replicas
        yield lowest.bit_length() - 1
        replicas ^= lowest
