"""The choice of a replica.

None of these has a clock. Ties are broken in turns: of equal replicas the first one at or after the
place behind the last choice. Those that draw have a generator of their own, of a seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from penstock.errors import ConfigError
from penstock.routing.known import Known, Sessions, Turns
from penstock.routing.query import Query, bits


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
    """The replica at which a request adds least to the work that stands before its first token.

    The cost is the replica's work (prompt tokens that are not computed yet, and what its sequences
    still decode) and what the request adds: the tokens of its prompt that are not in the cache
    there, by their weight, and what is lost for them where the cache is full; all in grains
    (``LoadWeights``). Of
    equal costs that of the conversation's last replica is taken, else the longest prefix, else the
    one that has been given least to compute so far, whose cache has the oldest to give up.

    Replicas of one entry of ``overlaps`` that are full, or are not, are alike but for their work,
    so the least loaded of each is the only candidate.
    """

    def __init__(self, known: Known) -> None:
        self._known = known
        self._turns = Turns()
        self._sessions = Sessions()

    def choose(self, query: Query, among: int) -> Choice:
        loads, full = self._known.loads, self._known.index.full
        weights, work = loads.weights, loads.work
        grain, weight, lost = weights.grain, weights.uncached, weights.lost
        lowest, prompt = work.lowest, query.tokens
        least, chosen, cached = -1, 0, 0
        overlaps = self._known.overlaps(query, among)
        for tokens, replicas in overlaps:
            uncached = prompt - tokens
            added = math.ceil(uncached * weight / grain)
            if chosen and lowest + added >= least:
                break  # neither this nor any shorter prefix costs less
            filled = replicas & full
            if filled != replicas:
                level, equal = work.least(replicas ^ filled)
                if not chosen or level + added < least:
                    least, chosen, cached = level + added, equal, tokens
            if filled:
                added += int(uncached * lost) // grain
                level, equal = work.least(filled)
                if not chosen or level + added < least:
                    least, chosen, cached = level + added, equal, tokens
        session = query.session
        if session is not None:
            last = self._sessions.last(session)
            if last is not None and among >> last & 1:
                held = next(tokens for tokens, replicas in overlaps if replicas >> last & 1)
                if self._cost(last, prompt - held) == least:
                    self._sessions.went(session, last)
                    return Choice(last, held)
        replica = self._turns.first(loads.given.least(chosen)[1])
        self._sessions.went(session, replica)
        return Choice(replica, cached)

    def _cost(self, replica: int, uncached: int) -> int:
        weights = self._known.loads.weights
        cost = self._known.loads.work.level(replica)
        cost += math.ceil(uncached * weights.uncached / weights.grain)
        if self._known.index.full >> replica & 1:
            cost += int(uncached * weights.lost) // weights.grain
        return cost


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
        held: Callable[[int], int],
        thresholds: Thresholds = Thresholds(),
    ) -> None:
        """``held``: how many blocks a replica holds."""
        self._known = known
        self._held = held
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
        replica = min(bits(among), key=self._held)
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


MakePolicy = Callable[[Known, Callable[[int], int], int], Policy]
"""Makes a policy of what is known, of how many blocks a replica holds, and of a seed."""

POLICIES: Final[Mapping[str, MakePolicy]] = {
    "cost": lambda known, held, seed: LeastCost(known),
    "round-robin": lambda known, held, seed: RoundRobin(known),
    "random": lambda known, held, seed: RandomChoice(known, seed),
    "least-requests": lambda known, held, seed: LeastRequests(known),
    "least-work": lambda known, held, seed: LeastWork(known),
    "two-choices": lambda known, held, seed: TwoChoices(known, seed),
    "threshold": lambda known, held, seed: Threshold(known, held),
}
"""Policies by the names that users give them."""


def check_policy(name: str, known: Sequence[str] = tuple(POLICIES)) -> None:
    """Raises ConfigError for an unknown name."""
    if name not in known:
        raise ConfigError(f"routing is one of {', '.join(known)}, not {name!r}")
