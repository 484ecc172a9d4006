"""Which replica serves a request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Final, Protocol

import numpy as np

from penstock.errors import ConfigError
from penstock.simulate.asked import Asked

_LOOKED_AT: Final = 512
"""Pieces of a prompt."""
_LEAST_SHARE: Final = 0.25
_REMEMBERED: Final = 1 << 20
_TOO_MANY, _MARGIN = 1.25, 2
"""A replica with more open requests than so many times the mean, and a few, is passed over."""


class Loads(Protocol):
    """What a router may know of replicas when a request arrives."""

    def requests(self, replica: int) -> int:
        """Its open requests."""

    def tokens(self, replica: int) -> int:
        """Tokens of prompts and answers of these."""


class Router(Protocol):
    """Chooses replicas. One router serves one run."""

    def choose(self, asked: Asked, loads: Loads) -> int:
        """The number of the replica that gets a request."""


class RoundRobin:
    """One replica after the other."""

    def __init__(self, replicas: int, seed: int) -> None:
        self._replicas = replicas
        self._next = 0

    def choose(self, asked: Asked, loads: Loads) -> int:
        chosen = self._next
        self._next = (chosen + 1) % self._replicas
        return chosen


class RandomChoice:
    """Any of them, evenly."""

    def __init__(self, replicas: int, seed: int) -> None:
        self._replicas = replicas
        self._generator = np.random.default_rng([seed, replicas])

    def choose(self, asked: Asked, loads: Loads) -> int:
        return int(self._generator.integers(self._replicas))


class LeastRequests:
    """The one with the fewest open requests; of several, the one that was chosen longest ago."""

    def __init__(self, replicas: int, seed: int) -> None:
        self._order: OrderedDict[int, None] = OrderedDict.fromkeys(range(replicas))

    def choose(self, asked: Asked, loads: Loads) -> int:
        chosen = min(self._order, key=self.load(loads))
        self._order.move_to_end(chosen)
        return chosen

    def load(self, loads: Loads) -> Callable[[int], int]:
        """What is to be least."""
        return loads.requests


class LeastTokens(LeastRequests):
    """The one with the fewest tokens of open requests."""

    def load(self, loads: Loads) -> Callable[[int], int]:
        return loads.tokens


class TwoChoices:
    """The one, of two that are drawn, with fewer tokens of open requests (Mitzenmacher, "The power
    of two choices in randomized load balancing", 2001)."""

    def __init__(self, replicas: int, seed: int) -> None:
        self._replicas = replicas
        self._generator = np.random.default_rng([seed, replicas])

    def choose(self, asked: Asked, loads: Loads) -> int:
        if self._replicas == 1:
            return 0
        drawn: list[int] = self._generator.choice(
            self._replicas, 2, replace=False, shuffle=True
        ).tolist()
        return min(drawn, key=loads.tokens)


class PrefixAffinity:
    """The one that has last served the longest beginning of the prompt, so that its cache may hold
    it, unless far more requests are open there than elsewhere; else the one with the fewest.

    A beginning counts from a quarter of the prompt on: what all prompts share is soon in every
    cache. It remembers the latest million beginnings, by the pieces of prompts.
    """

    def __init__(self, replicas: int, seed: int) -> None:
        self._replicas = replicas
        self._least = LeastRequests(replicas, seed)
        self._served: OrderedDict[bytes, int] = OrderedDict()

    def choose(self, asked: Asked, loads: Loads) -> int:
        beginnings = _beginnings(asked)
        known = next((self._served[each] for each in beginnings if each in self._served), None)
        if known is None or self._crowded(known, loads):
            known = self._least.choose(asked, loads)
        for each in beginnings:
            self._served[each] = known
            self._served.move_to_end(each)
        while len(self._served) > _REMEMBERED:
            self._served.popitem(last=False)
        return known

    def _crowded(self, replica: int, loads: Loads) -> bool:
        mean = sum(map(loads.requests, range(self._replicas))) / self._replicas
        return loads.requests(replica) > _TOO_MANY * mean + _MARGIN


def _beginnings(asked: Asked) -> Sequence[bytes]:
    """Names of the beginnings of a prompt that count, the longest first."""
    found, name, tokens = [], b"", 0
    for piece in asked.pieces[:_LOOKED_AT]:
        name = blake2b(name + repr((piece.key, piece.tokens)).encode(), digest_size=12).digest()
        tokens += piece.tokens
        if tokens >= asked.prompt * _LEAST_SHARE:
            found.append(name)
    return found[::-1]


POLICIES: Final[
    Mapping[str, type[RoundRobin | RandomChoice | LeastRequests | TwoChoices | PrefixAffinity]]
] = {
    "round-robin": RoundRobin,
    "random": RandomChoice,
    "least-requests": LeastRequests,
    "least-tokens": LeastTokens,
    "two-choices": TwoChoices,
    "prefix": PrefixAffinity,
}
"""Routers by the names that users give them."""


def make_router(name: str, replicas: int, seed: int) -> Router:
    """Raises ConfigError for an unknown name."""
    if name not in POLICIES:
        raise ConfigError(f"routing is one of {', '.join(POLICIES)}, not {name!r}")
    return POLICIES[name](replicas, seed)
