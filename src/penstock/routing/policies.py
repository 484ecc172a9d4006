"""The choice of a replica.

None of these has a clock. Ties are broken in turns: of equal replicas the first one at or after the
place behind the last choice. Those that draw have a generator of their own, of a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from penstock.errors import ConfigError
from penstock.routing.known import Known, Sessions, Turns
from penstock.routing.query import Query


class Choice(NamedTuple):
    """The replica that a request gets."""

    replica: int
    cached: int
    """Tokens of the prompt that are expected to be found there."""


class Policy(Protocol):
    """Chooses replicas; one for each router."""

    def choose(self, query: Query, among: int) -> Choice:
        """Choose one of a set that is not empty."""


class LeastCost:
    """The replica at which a request costs least (:class:`~penstock.routing.costs.Costs`).

    Of equal costs that of the conversation's last replica is taken, else the longest prefix, else
    the one that has been given least to compute so far, whose cache has the oldest to give up.
    """

    def __init__(self, known: Known) -> None:
        self._known = known
        self._cheapest = known.search.cheapest
        self._turns = Turns()
        self._sessions = Sessions()

    def choose(self, query: Query, among: int) -> Choice:
        cost, cached, replicas = self._cheapest(query.chains, query.tokens, among)
        session = query.session
        if session is not None:
            last = self._sessions.last(session)
            if last is not None and among >> last & 1:
                held = self._known.cached(query, last)
                if self._known.costs.of(last, query.tokens - held) == cost:
                    self._sessions.went(session, last)
                    return Choice(last, held)
        replica = self._turns.first(replicas)
        self._sessions.went(session, replica)
        return Choice(replica, cached)


class RoundRobin:
    """One replica after the other."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._turns = Turns()

    def choose(self, query: Query, among: int) -> Choice:
        replica = self._turns.first(among)
        return Choice(replica, self._known.cached(query, replica))


class RandomChoice:
    """Any of them, evenly."""

    def __init__(self, known: Known, seed: int) -> None:
        self._known = known
        self._random = random.Random(seed)

    def choose(self, query: Query, among: int) -> Choice:
        replica = nth(among, self._random.randrange(among.bit_count()))
        return Choice(replica, self._known.cached(query, replica))


class LeastRequests:
    """One of those with the fewest open requests."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._turns = Turns()

    def choose(self, query: Query, among: int) -> Choice:
        _, equal = self._known.loads.requests.least(among)
        replica = self._turns.first(equal)
        return Choice(replica, self._known.cached(query, replica))


class LeastWork:
    """One of those with the least work, whatever they hold."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._turns = Turns()

    def choose(self, query: Query, among: int) -> Choice:
        _, equal = self._known.loads.work.least(among)
        replica = self._turns.first(equal)
        return Choice(replica, self._known.cached(query, replica))


class TwoChoices:
    """The one, of two that are drawn, with less work (Mitzenmacher, "The power of two choices in
    randomized load balancing", 2001)."""

    def __init__(self, known: Known, seed: int) -> None:
        self._known = known
        self._random = random.Random(seed)

    def choose(self, query: Query, among: int) -> Choice:
        count = among.bit_count()
        drawn = self._random.sample(range(count), min(2, count))
        work = self._known.loads.work
        replica = min((nth(among, place) for place in drawn), key=work.level)
        return Choice(replica, self._known.cached(query, replica))


@dataclass(frozen=True)
class Thresholds:
    """When :class:`Threshold` follows the cache. The defaults are those that routers of this kind
    are published with."""

    match: float = 0.3
    """Share of a prompt that a replica must hold to be preferred for it."""
    absolute: int = 64
    relative: float = 1.5
    """Loads are uneven, and the least loaded replica is taken, where the most open requests of a
    replica exceed the fewest by more than ``absolute`` and by more than this factor."""


class Threshold:
    """The replica that holds most of the prompt, where that is enough and loads are even; the one
    with the fewest open requests where loads are uneven; else the one that holds least."""

    def __init__(
        self,
        known: Known,
        thresholds: Thresholds = Thresholds(),
    ) -> None:
        self._known = known
        self._held = known.index.held
        self._thresholds = thresholds
        self._turns = Turns()

    def choose(self, query: Query, among: int) -> Choice:
        known, bound = self._known, self._thresholds
        requests = known.loads.requests
        most, fewest = requests.highest, requests.lowest
        if most - fewest > bound.absolute and most > bound.relative * fewest:
            _, equal = requests.least(among)
            replica = self._turns.first(equal)
            return Choice(replica, known.cached(query, replica))
        longest = known.overlaps(query, among)[0]
        if longest.held > bound.match * query.tokens:
            return Choice(self._turns.first(longest.replicas), longest.held)
        _, equal = self._held.least(among)
        replica = (equal & -equal).bit_length() - 1
        return Choice(replica, known.cached(query, replica))


def nth(among: int, place: int) -> int:
    """The replica that ``place`` others of a set come before."""
    low, high = 0, among.bit_length()
    while high - low > 1:
        middle = (low + high) // 2
        below = (among >> low & ((1 << (middle - low)) - 1)).bit_count()
        if place < below:
            high = middle
        else:
            low, place = middle, place - below
    return low


MakePolicy = Callable[[Known, int], Policy]
"""Makes a policy of what is known, and of a seed."""

POLICIES: Final[Mapping[str, MakePolicy]] = {
    "cost": lambda known, seed: LeastCost(known),
    "round-robin": lambda known, seed: RoundRobin(known),
    "random": lambda known, seed: RandomChoice(known, seed),
    "least-requests": lambda known, seed: LeastRequests(known),
    "least-work": lambda known, seed: LeastWork(known),
    "two-choices": lambda known, seed: TwoChoices(known, seed),
    "threshold": lambda known, seed: Threshold(known),
}
"""Policies by the names that users give them."""


def check_policy(name: str, known: Sequence[str] = tuple(POLICIES)) -> None:
    """Raises ConfigError for an unknown name."""
    if name not in known:
        raise ConfigError(f"routing is one of {', '.join(known)}, not {name!r}")
