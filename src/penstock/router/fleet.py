"""All replicas, and the decision among them."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from penstock.errors import ConfigError
from penstock.router.options import RouterOptions
from penstock.router.replica import Replica, State
from penstock.routing.policies import Choice
from penstock.routing.query import Query, bits
from penstock.routing.router import Router, Sent

BLOCK_CHAIN, TEXT_CHAIN = 0, 1
"""Places of chains in queries: keys of the blocks of caches, and of pieces of text."""
TEXT_TOKENS = 64
"""Tokens that a piece of text counts."""

_log = logging.getLogger("penstock.router")


class Fleet:
    """The replicas of one router. Belongs to one event loop."""

    def __init__(self, options: RouterOptions) -> None:
        """Raises ConfigError for what is no URL of a server, and for one that is there twice."""
        self.options = options
        self.router = Router(options.policy, options.weights)
        self.replicas = [Replica.of(url) for url in options.urls]
        urls = [replica.url for replica in self.replicas]
        for url in urls:
            if urls.count(url) > 1:
                raise ConfigError(f"{url} is given twice; name each server once")
        self._by_number: dict[int, Replica] = {}
        self._text_keys = max(options.assumed_tokens // TEXT_TOKENS, 1)

    def ready(self, model: str | None, without: Iterable[Replica] = ()) -> int:
        """The set of replicas that may be sent a request for a model, ``without`` some."""
        left = set(without)
        return sum(
            1 << replica.number
            for replica in self.replicas
            if replica.state == "ready"
            and replica.number is not None
            and replica.serves(model)
            and replica not in left
        )

    def of(self, numbers: int) -> list[Replica]:
        """The replicas of a set."""
        return [self._by_number[number] for number in bits(numbers)]

    @property
    def models(self) -> list[str]:
        """All models that a replica which may be asked is known to serve."""
        found = [r.models for r in self.replicas if r.state in ("ready", "draining")]
        return sorted(set().union(*(models for models in found if models is not None)))

    def choose(self, query: Query, among: int) -> tuple[Replica, Choice]:
        """One of a set that is not empty."""
        choice = self.router.choose(query, among)
        return self._by_number[choice.replica], choice

    def begin(self, replica: Replica, query: Query, choice: Choice) -> Sent:
        """Note that a request is sent to a replica."""
        replica.counts.requests += 1
        replica.counts.prompt_tokens += query.tokens
        replica.counts.cached_tokens += choice.cached
        return self.router.begin(query, choice)

    def now(self, replica: Replica, state: State, trouble: str = "") -> None:
        """Note a replica's state."""
        if (replica.state, replica.trouble) == (state, trouble):
            return
        if state == "ready":
            _log.warning("%s is ready", replica.url)
        elif state != replica.state:
            _log.warning("%s is %s: %s", replica.url, state, trouble)
        if state == "down":
            replica.synchronized = False
            if replica.number is not None and not replica.reports:
                self.router.forget(replica.number)  # it may have been started anew
        if state == "ready" and replica.number is not None:
            self.router.loads.catch_up(replica.number, self.ready(None))
        replica.state, replica.trouble = state, trouble

    def joined(self, replica: Replica, reports: bool) -> None:
        """Let a replica be chosen: one that reports its cache, or one of which it is assumed."""
        if replica.number is not None:
            if replica.reports == reports:
                return
            self.router.leave(replica.number)
            del self._by_number[replica.number]
        if reports:
            number = self.router.join(chain=BLOCK_CHAIN)
        else:
            number = self.router.join(assumed=self._text_keys, chain=TEXT_CHAIN)
        replica.number, replica.reports = number, reports
        self._by_number[number] = replica

    def close(self) -> None:
        for replica in self.replicas:
            replica.pool.close()
