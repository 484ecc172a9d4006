"""What a request costs at replicas."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

from penstock.routing.holders import Index, overlaps
from penstock.routing.loads import Loads
from penstock.routing.query import Chain


class Cheapest(NamedTuple):
    """Where a request costs least."""

    cost: int
    """Grains of work."""
    cached: int
    """Tokens of the prompt that are held there."""
    replicas: int
    """A set: of equal costs those that hold most, and of these those that were given least to
    compute so far, whose caches have the oldest to give up."""


class Search(Protocol):
    """Looks for where a request costs least."""

    def cheapest(self, chains: tuple[Chain, ...], prompt: int, among: int) -> tuple[int, int, int]:
        """Where, in a set of replicas that is not empty, a prompt of so many tokens costs least:
        what :class:`Cheapest` has."""
        ...


class Costs:
    """What a request adds to the work that stands before its first token.

    The cost is the replica's work (prompt tokens that are not computed yet, and what its sequences
    still decode) and what the request adds: the tokens of its prompt that are not in the cache
    there, by their weight, and what is lost for them where the cache is full; all in grains
    (``LoadWeights``).
    """

    def __init__(self, index: Index, loads: Loads) -> None:
        self._index = index
        self._loads = loads

    def cheapest(self, chains: tuple[Chain, ...], prompt: int, among: int) -> Cheapest:
        """Replicas of one entry of ``overlaps`` that are full, or are not, are alike but for their
        work, so the least loaded of each is the only candidate."""
        loads, full = self._loads, self._index.full
        weights, work = loads.weights, loads.work
        grain, weight, lost = weights.grain, weights.uncached, weights.lost
        lowest = work.lowest
        least, chosen, cached = -1, 0, 0
        for tokens, replicas in overlaps(self._index, chains, among):
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
        return Cheapest(least, cached, loads.given.least(chosen)[1])

    def of(self, replica: int, uncached: int) -> int:
        """The cost at one replica, of so many tokens that it does not hold."""
        weights = self._loads.weights
        cost = self._loads.work.level(replica)
        cost += math.ceil(uncached * weights.uncached / weights.grain)
        if self._index.full >> replica & 1:
            cost += int(uncached * weights.lost) // weights.grain
        return cost
