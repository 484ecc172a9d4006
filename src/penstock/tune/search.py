"""The search: many candidates on a short part of the load, fewer on longer ones, the best refined.

Successive halving (Jamieson & Talwalkar, "Non-stochastic best arm identification and hyperparameter
optimization", 2016) over growing parts of the trace, then coordinate descent on all of it. The
default takes part in every round and is never dropped, so nothing worse than it is ever found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from penstock.bench.progress import Stopped
from penstock.errors import PenstockError
from penstock.profile import ObjectiveName, Served
from penstock.tune.load import parts
from penstock.tune.objective import Key, key_of
from penstock.tune.space import Candidate, Space

_SHARES: Final = (1 / 9, 1 / 3)
"""Parts of the load before all of it."""
_KEPT: Final = 3
"""One of so many candidates is kept for the next part."""
_REFINED: Final = 2
"""So many of the best are refined."""


class Simulate(Protocol):
    """Says what a candidate makes of a load's first conversations."""

    def __call__(self, candidate: Candidate, conversations: int) -> Served:
        """Raises PenstockError for one that this machine cannot run, and Stopped."""


@dataclass(frozen=True)
class Scored:
    """A candidate and what it made of a part of the load."""

    candidate: Candidate
    served: Served
    key: Key


@dataclass(frozen=True)
class Found:
    """What a search has found."""

    ranked: tuple[Scored, ...]
    """Candidates that were simulated on the longest part, the best first."""
    default: Scored
    tried: int
    refused: dict[str, str]
    """Candidates that cannot run, by name, and why."""
    partial: bool
    """It was stopped; ``ranked`` may be of a part of the load."""


@dataclass
class Search:
    """One search. Equal seeds and simulations find the same."""

    space: Space
    simulate: Simulate
    objective: ObjectiveName
    conversations: int
    seed: int = 0
    candidates: int = 48
    """How many begin."""
    begin: Callable[[str, int], None] = lambda name, total: None
    """Told what goes on, and how many simulations it has at most."""
    _known: dict[tuple[Candidate, int], Scored] = field(default_factory=dict)
    _refused: dict[str, str] = field(default_factory=dict)
    _tried: set[Candidate] = field(default_factory=set)

    def run(self) -> Found:
        """Raises Stopped where nothing is known yet, and PenstockError where the default cannot
        run."""
        sizes = parts(self.conversations, _SHARES)
        alive = self._first()
        ranked: Sequence[Scored] = ()
        whole, partial = sizes[0], False
        try:
            for size in sizes:
                self.begin(f"{len(alive)} configurations, {size:,} conversations", len(alive))
                ranked = self._ranked(alive, size)
                whole = size
                kept = [each.candidate for each in ranked[: max(len(ranked) // _KEPT, 4)]]
                alive = list(dict.fromkeys((self.space.default, *kept)))
            ranked = self._refine(ranked, sizes[-1])
        except Stopped:
            partial = True
            if (self.space.default, whole) not in self._known:
                raise
            ranked = self._sorted([one for (_, of), one in self._known.items() if of == whole])
        default = next(each for each in ranked if each.candidate == self.space.default)
        return Found(tuple(ranked), default, len(self._tried), self._refused, partial)

    def _first(self) -> list[Candidate]:
        """The default, all that differ from it in one option, and others that are drawn."""
        space = self.space
        found = dict.fromkeys((space.default,))
        for each in space.dimensions:
            several = (space.default.having(each.option, value) for value in each.values)
            found |= dict.fromkeys(one for one in several if one.possible)
        generator = np.random.default_rng([self.seed, 0x7E57])
        most = min(max(self.candidates, len(found)), space.size)
        for _ in range(20 * most):
            if len(found) >= most:
                break
            drawn = space.default
            for each in space.dimensions:
                drawn = drawn.having(
                    each.option, each.values[int(generator.integers(len(each.values)))]
                )
            if drawn.possible:
                found[drawn] = None
        return list(found)

    def _ranked(self, candidates: Sequence[Candidate], size: int) -> list[Scored]:
        return self._sorted(
            [one for each in candidates if (one := self._score(each, size)) is not None]
        )

    def _sorted(self, scored: Sequence[Scored]) -> list[Scored]:
        """The best first; of equals, the one with fewer changes."""
        return sorted(scored, key=lambda each: (each.key, len(self.space.changed(each.candidate))))

    def _score(self, candidate: Candidate, size: int) -> Scored | None:
        """What it makes of the first conversations; None if it cannot run."""
        known = self._known.get((candidate, size))
        if known is not None:
            return known
        name = self.space.named(candidate)
        if name in self._refused:
            return None
        try:
            served = self.simulate(candidate, size)
        except PenstockError as error:
            if candidate == self.space.default:
                raise
            self._refused[name] = str(error)
            return None
        self._tried.add(candidate)
        made = Scored(candidate, served, key_of(self.objective, served))
        self._known[candidate, size] = made
        return made

    def _refine(self, ranked: Sequence[Scored], size: int) -> list[Scored]:
        """Change one option after the other of the best, as long as that is better."""
        found = {each.candidate: each for each in ranked}
        for start in list(ranked)[:_REFINED]:
            best, better = start, True
            while better:
                better = False
                for dimension in self.space.dimensions:
                    near = self.space.neighbours(best.candidate, dimension)
                    self.begin(f"around {self.space.named(best.candidate)}", len(near))
                    for each in self._ranked(near, size):
                        found[each.candidate] = each
                        if self._sorted((best, each))[0] is not best:
                            best, better = each, True
        return self._sorted(list(found.values()))
