"""The open requests of replicas, in tokens of work that is left."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.routing.levels import LoadLevels


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
    lost: float = 0.25
    """What computing a token costs besides, in tokens, where the cache is full: another one is
    given up for it, which would have been asked for again with about this probability. It keeps
    requests from gathering at the few replicas that hold a beginning which all prompts have, while
    caches of others have room."""


class _Load:
    __slots__ = ("decoding", "given", "prefill", "requests")

    def __init__(self, given: int) -> None:
        self.given = given
        self.requests = 0
        self.prefill = 0
        self.decoding = 0


class LoadBook:
    """Open requests, prompt tokens that are not computed yet, and sequences that decode.

    ``work`` has their levels in grains of work, ``requests`` in open requests, and ``given`` in
    what they were given to compute so far.
    """

    def __init__(self, weights: LoadWeights) -> None:
        self.weights = weights
        self.work = LoadLevels()
        self.requests = LoadLevels()
        self.given = LoadLevels()
        self._loads: dict[int, _Load] = {}

    def join(self, replica: int) -> None:
        # One that is new has nothing to make up for.
        given = self.given.lowest * self.weights.given_grain if self._loads else 0
        self._loads[replica] = _Load(given)
        self.work.put(replica, 0)
        self.requests.put(replica, 0)
        self.given.put(replica, given // self.weights.given_grain)

    def leave(self, replica: int) -> None:
        """Forget a replica."""
        del self._loads[replica]
        self.work.drop(replica)
        self.requests.drop(replica)
        self.given.drop(replica)

    def give(self, replica: int, tokens: int) -> None:
        """Note that a replica was given so many tokens to compute."""
        load = self._loads[replica]
        load.given += tokens
        self.given.put(replica, load.given // self.weights.given_grain)

    def catch_up(self, replica: int, others: int) -> None:
        """Let a replica that got nothing for a while have nothing to make up for: it counts as
        given what the least given one of a set was."""
        if others:
            least = self.given.least(others)[0] * self.weights.given_grain
            self.give(replica, max(least - self._loads[replica].given, 0))

    def grains(self, tokens: int) -> int:
        """Grains of so many tokens, rounded up."""
        return -(-tokens // self.weights.grain)

    def prefill(self, replica: int) -> int:
        """Prompt tokens that are not computed yet."""
        return self._loads[replica].prefill

    def decoding(self, replica: int) -> int:
        """Sequences that decode."""
        return self._loads[replica].decoding

    def change(
        self, replica: int, *, requests: int = 0, prefill: int = 0, decoding: int = 0
    ) -> None:
        """Add to a replica's load."""
        load = self._loads[replica]
        load.requests += requests
        load.prefill += prefill
        load.decoding += decoding
        weights = self.weights
        tokens = load.prefill + weights.decode_tokens * load.decoding
        self.work.put(replica, tokens // weights.grain)
        if requests:
            self.requests.put(replica, load.requests)

    def put(self, replica: int, requests: int, prefill: int, decoding: int) -> None:
        """Set a replica's whole load, as it was looked up."""
        load = self._loads[replica]
        self.change(
            replica,
            requests=requests - load.requests,
            prefill=prefill - load.prefill,
            decoding=decoding - load.decoding,
        )
