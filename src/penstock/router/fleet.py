"""All replicas, and the decision among them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Iterator, Sequence

from penstock.errors import ConfigError
from penstock.router.options import RouterOptions
from penstock.router.replica import Member, Replica, ReplicaCounts, State
from penstock.router.sets import ReplicaSets
from penstock.routing.policies import Choice
from penstock.routing.query import Query, bits
from penstock.routing.router import Router, Sent

BLOCK_CHAIN, TEXT_CHAIN = 0, 1
"""Places of chains in queries: keys of the blocks of caches, and of pieces of text."""
TEXT_TOKENS = 64
"""Tokens that a piece of text counts."""

_log = logging.getLogger("penstock.router")


class Fleet:
    """The replicas of one router, which may come and go. Belongs to one event loop."""

    def __init__(self, options: RouterOptions) -> None:
        self.options = options
        self.router = Router(options.policy, options.weights)
        self.name = f"penstock-{secrets.token_hex(8)}"
        """The name by which its own requests are known, should they come back to it."""
        self.replicas: list[Replica] = []
        self.of_gone = ReplicaCounts()
        """What came of the requests of those that have gone, together."""
        self.unresolved: dict[str, str] = {}
        """URLs whose names have no addresses now, and why."""
        self.waiting_requests = 0
        """Requests that wait for a replica."""
        self.sets = ReplicaSets(self.replicas)
        self._by_number: dict[int, Replica] = {}
        self._text_keys = max(options.assumed_tokens // TEXT_TOKENS, 1)
        self._change = asyncio.Event()

    def add(self, member: Member) -> Replica:
        """Add a server, of which nothing is known yet. Raises ConfigError for what is no URL of a
        server, and for one that is there."""
        replica = Replica.of(member)
        if any(each.url == replica.url for each in self.replicas):
            raise ConfigError(f"{replica.url} is given twice; name each server once")
        self.replicas.append(replica)
        replica.changed = self.sets.renew
        return replica

    def remove(self, replica: Replica) -> None:
        """Send a replica nothing more; what is open there may go on."""
        self.replicas.remove(replica)
        self.sets.renew()
        if replica.number is not None:
            self._leave(replica.number)
            replica.number = None
        replica.state, replica.trouble = "gone", ""
        self.of_gone.add(replica.counts)
        replica.counts = self.of_gone  # what is still open there counts, too
        replica.synchronized = False
        replica.pool.close()

    def ready(self, model: str | None) -> int:
        """The set of replicas that may be sent a new request for a model."""
        return self.sets.on_time(self.sets.able(model))

    def of(self, numbers: int) -> list[Replica]:
        """The replicas of a set."""
        return [self._by_number[number] for number in bits(numbers)]

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A request waits for a replica."""
        self.waiting_requests += 1
        try:
            yield
        finally:
            self.waiting_requests -= 1

    async def changed(self, seconds: float) -> None:
        """Return once a replica has become ready, or after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._change.wait()

    @property
    def models(self) -> list[str]:
        """All models that a replica which may be asked is known to serve."""
        found = [r.models for r in self.replicas if r.state in ("ready", "draining")]
        return sorted(set().union(*(models for models in found if models is not None)))

    def known_as(self, names: Sequence[str]) -> str:
        """Which of a model's ``names`` a replica serves it by; the first where none does."""
        served = [r.models for r in self.replicas if r.models is not None]
        return next((name for name in names if any(name in of for of in served)), names[0])

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
        if replica.state == "gone":
            return
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
        if state == "ready":
            replica.lives += 1
            self._change.set()
            self._change = asyncio.Event()

    @property
    def troubles(self) -> str:
        """Why replicas are not ready, for a message."""
        known = {r.url: r.trouble or r.state for r in self.replicas} | self.unresolved
        return "; ".join(f"{url}: {why}" for url, why in known.items()) or "there is none"

    def joined(self, replica: Replica, reports: bool) -> None:
        """Let a replica be chosen: one that reports its cache, or one of which it is assumed."""
        if replica.state == "gone":
            return
        if replica.number is not None:
            if replica.reports == reports:
                return
            replica.synchronized = False
            self._leave(replica.number)
        if reports:
            number = self.router.join(chain=BLOCK_CHAIN)
        else:
            number = self.router.join(assumed=self._text_keys, chain=TEXT_CHAIN)
        replica.number, replica.reports = number, reports
        self._by_number[number] = replica

    def load(self, replica: Replica) -> tuple[int, int]:
        """Prompt tokens of its requests that are not computed yet, and sequences that decode."""
        if replica.number is None:
            return 0, 0
        loads = self.router.loads
        return loads.prefill(replica.number), loads.decoding(replica.number)

    def _leave(self, number: int) -> None:
        self.router.leave(number)
        del self._by_number[number]

    def close(self) -> None:
        for replica in self.replicas:
            replica.pool.close()
