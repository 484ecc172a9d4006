"""The open requests of replicas, in tokens of work that is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.routing.levels import Levels, LoadLevels


@dataclass(frozen=True)
class LoadWeights:
    """What work counts. The defaults are those of ``benchmarks/routing``."""

    decode_tokens: int = 256
    """What a sequence that decodes counts, in tokens of prefill: what is left of its answer on
    average, each token being a row of a step as one of a prompt is."""
    grain: int = 64
    """Tokens of a level."""
    given_grain: int = 4096
    """Tokens of a level of what replicas were given to compute: about those of a prompt."""
    uncached: float = 3.0
    """What a token of the prompt that must be computed counts, in tokens of work that stands before
    it. It takes time of those who come later, too, and room: the same beginning is then in two
    caches, and in one of them in vain. With 1 requests leave their beginnings for small differences
    of load, which find less and answer no sooner; above 3 little more is found."""
    lost: float = 0.25
    """What computing a token costs besides, in tokens, where the cache is full: another one is
    given up for it, which would have been asked for again with about this probability. It keeps
    requests from gathering at the few replicas that hold a beginning which all prompts have, while
    caches of others have room."""


@dataclass(slots=True)
class _Load:
    given: int
    requests: int = 0
    prefill: int = 0
    decoding: int = 0


class Loads(Protocol):
    """Open requests, prompt tokens that are not computed yet, and sequences that decode."""

    @property
    def weights(self) -> LoadWeights: ...

    @property
    def work(self) -> Levels:
        """Levels in grains of work."""
        ...

    @property
    def given(self) -> Levels:
        """Levels in what replicas were given to compute so far."""
        ...

    @property
    def requests(self) -> Levels:
        """Levels in open requests."""
        ...

    def join(self, replica: int) -> None: ...

    def leave(self, replica: int) -> None:
        """Forget a replica."""

    def begin(self, replica: int, tokens: int) -> None:
        """Note a request, of whose prompt so many tokens are to be computed."""

    def prefilled(self, replica: int, tokens: int) -> None:
        """Note that the prompt of a request is computed, which now decodes."""

    def end(self, replica: int, tokens: int) -> None:
        """Note the end of a request: one that decoded, or of whose prompt so many ``tokens`` were
        still to be computed."""

    def catch_up(self, replica: int, others: int) -> None:
        """Let a replica that got nothing for a while have nothing to make up for: it counts as
        given what the least given one of a set was."""

    def prefill(self, replica: int) -> int:
        """Prompt tokens that are not computed yet."""
        ...

    def decoding(self, replica: int) -> int:
        """Sequences that decode."""
        ...


class LoadBook:
    """:class:`Loads` of Python's own tables.

    Orders of replicas are kept for who asks for them: each costs a request about a microsecond for
    each change.
    """

    def __init__(self, weights: LoadWeights) -> None:
        self.weights = weights
        self.work = LoadLevels()
        self.given = LoadLevels()
        self._requests: LoadLevels | None = None
        self._loads: dict[int, _Load] = {}

    @property
    def requests(self) -> LoadLevels:
        if self._requests is None:
            self._requests = LoadLevels()
            for replica, load in self._loads.items():
                self._requests.put(replica, load.requests)
        return self._requests

    def join(self, replica: int) -> None:
        # One that is new has nothing to make up for.
        given = self.given.lowest * self.weights.given_grain if self._loads else 0
        self._loads[replica] = _Load(given)
        self.work.put(replica, 0)
        self.given.put(replica, given // self.weights.given_grain)
        if self._requests is not None:
            self._requests.put(replica, 0)

    def leave(self, replica: int) -> None:
        del self._loads[replica]
        self.work.drop(replica)
        self.given.drop(replica)
        if self._requests is not None:
            self._requests.drop(replica)

    def begin(self, replica: int, tokens: int) -> None:
        load = self._loads[replica]
        load.requests += 1
        load.prefill += tokens
        load.given += tokens
        weights = self.weights
        work = load.prefill + weights.decode_tokens * load.decoding
        self.work.put(replica, work // weights.grain)
        self.given.put(replica, load.given // weights.given_grain)
        if self._requests is not None:
            self._requests.put(replica, load.requests)

    def prefilled(self, replica: int, tokens: int) -> None:
        load = self._loads[replica]
        load.prefill -= tokens
        load.decoding += 1
        weights = self.weights
        work = load.prefill + weights.decode_tokens * load.decoding
        self.work.put(replica, work // weights.grain)

    def end(self, replica: int, tokens: int) -> None:
        load = self._loads[replica]
        load.requests -= 1
        if tokens:
            load.prefill -= tokens
        else:
            load.decoding -= 1
        weights = self.weights
        work = load.prefill + weights.decode_tokens * load.decoding
        self.work.put(replica, work // weights.grain)
        if self._requests is not None:
            self._requests.put(replica, load.requests)

    def catch_up(self, replica: int, others: int) -> None:
        if others:
            load, grain = self._loads[replica], self.weights.given_grain
            load.given = max(load.given, self.given.least(others)[0] * grain)
            self.given.put(replica, load.given // grain)

    def prefill(self, replica: int) -> int:
        return self._loads[replica].prefill

    def decoding(self, replica: int) -> int:
        return self._loads[replica].decoding
