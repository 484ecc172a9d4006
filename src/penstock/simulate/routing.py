"""Which replica serves a request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Final, Protocol

import numpy as np

from penstock.cache.changes import CacheChanges
from penstock.errors import ConfigError
from penstock.routing.policies import Choice
from penstock.routing.query import Chain, Query
from penstock.routing.router import Router as RealRouter
from penstock.routing.router import Sent
from penstock.simulate.asked import Asked, block_keys
from penstock.simulate.front_end import Answer

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

    def changes(self, replica: int, position: int | None) -> CacheChanges:
        """How its cache changed since a position, as it would report that."""


class Router(Protocol):
    """Chooses replicas. One router serves one run."""

    def choose(self, asked: Asked, loads: Loads) -> int:
        """The number of the replica that gets a request."""

    def sent(self, made: Answer) -> None:
        """What will come of the request that was chosen for last."""


class _Unwatched:
    """A router that keeps no account of answers."""

    def sent(self, made: Answer) -> None:
        pass


class RoundRobin(_Unwatched):
    """One replica after the other."""

    def __init__(self, replicas: int, seed: int) -> None:
        self._replicas = replicas
        self._next = 0

    def choose(self, asked: Asked, loads: Loads) -> int:
        chosen = self._next
        self._next = (chosen + 1) % self._replicas
        return chosen


class RandomChoice(_Unwatched):
    """Any of them, evenly."""

    def __init__(self, replicas: int, seed: int) -> None:
        self._replicas = replicas
        self._generator = np.random.default_rng([seed, replicas])

    def choose(self, asked: Asked, loads: Loads) -> int:
        return int(self._generator.integers(self._replicas))


class LeastRequests(_Unwatched):
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


class TwoChoices(_Unwatched):
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


class PrefixAffinity(_Unwatched):
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


class Routed:
    """A policy of ``routing``, the code of ``penstock route``: replicas report their caches to it,
    and it keeps its own account of what is open, by what clients see of their answers."""

    def __init__(self, policy: str, replicas: int, seed: int, block_size: int) -> None:
        self._router = RealRouter(policy, seed=seed)
        self._positions: list[int | None] = [None] * replicas
        for _ in range(replicas):
            self._router.join()
        self._block_size = block_size
        self._chosen: tuple[Query, Choice] | None = None
        self._open: list[tuple[Answer, Sent]] = []

    def choose(self, asked: Asked, loads: Loads) -> int:
        router, size = self._router, self._block_size
        for replica, position in enumerate(self._positions):
            changes = loads.changes(replica, position)
            book = router.reported(replica)
            if changes.since is None:
                book.replace(b"".join(changes.added))
            elif changes.until != changes.since:
                book.change(b"".join(changes.added), b"".join(changes.removed))
            self._positions[replica] = changes.until
        self._open = [each for each in self._open if not self._followed(*each, asked.sent_s)]
        chain = Chain(b"".join(block_keys(asked.pieces, size)), size)
        query = Query((chain,), asked.prompt, asked.conversation)
        choice = router.choose(query, router.replicas)
        self._chosen = query, choice
        return choice.replica

    def sent(self, made: Answer) -> None:
        if self._chosen is not None and made.error is None:
            self._open.append((made, self._router.begin(*self._chosen)))
        self._chosen = None

    def _followed(self, made: Answer, sent: Sent, now: float) -> bool:
        """Note what a client knows of its answer by now; whether that is the end."""
        if made.first_s is not None and made.first_s <= now:
            self._router.prefilled(sent)
        if made.error is None and (made.tokens < made.asked.output or made.last_s > now):
            return False
        self._router.end(sent)
        return True


MakeRouter = Callable[[int, int, int], Router]
"""Makes a router of the number of replicas, a seed and the size of a block."""


def _own(make: Callable[[int, int], Router]) -> MakeRouter:
    return lambda replicas, seed, block_size: make(replicas, seed)


POLICIES: Final[Mapping[str, MakeRouter]] = {
    "round-robin": _own(RoundRobin),
    "random": _own(RandomChoice),
    "least-requests": _own(LeastRequests),
    "least-tokens": _own(LeastTokens),
    "two-choices": _own(TwoChoices),
    "prefix": _own(PrefixAffinity),
    "cost": partial(Routed, "cost"),
    "threshold": partial(Routed, "threshold"),
}
"""Routers by the names that users give them."""


def make_router(name: str, replicas: int, seed: int, block_size: int) -> Router:
    """Raises ConfigError for an unknown name."""
    if name not in POLICIES:
        raise ConfigError(f"routing is one of {', '.join(POLICIES)}, not {name!r}")
    return POLICIES[name](replicas, seed, block_size)
