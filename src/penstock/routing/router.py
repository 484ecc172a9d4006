"""A router's whole state: what replicas hold, what they have to do, and the choice among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.routing.books import ReplicaBook, ReportingBook
from penstock.routing.known import Known
from penstock.routing.loads import LoadWeights
from penstock.routing.policies import POLICIES, Choice, check_policy
from penstock.routing.query import Chain, Query
from penstock.routing.tables import MakeTables, best_tables

DEFAULT_POLICY = "cost"
_NO_KEYS: Final = Chain(b"", 1)


@dataclass(frozen=True, slots=True, eq=False)
class _Replica:
    book: ReplicaBook
    reports: ReportingBook | None
    """The same book, if it reports what it holds."""
    chain: int
    """Which of a query's chains names what it holds."""


class Sent:
    """One request at its replica."""

    __slots__ = ("at", "cached", "chain", "prefilling", "replica", "uncached")

    def __init__(
        self, replica: int, at: _Replica, cached: int, uncached: int, chain: Chain
    ) -> None:
        self.replica = replica
        self.at = at
        self.cached = cached
        """Prompt tokens that were expected to be found."""
        self.uncached = uncached
        self.chain = chain
        self.prefilling: bool | None = True
        """False from the first token on, None from the end on."""


class Router:
    """Chooses replicas and keeps the books that choices rest on.

    A request is *chosen* for, *begun*, *prefilled* when its first token comes, and *ended*.
    Replicas are numbered from 0; the number of one that has left is used again.
    """

    def __init__(
        self,
        policy: str = DEFAULT_POLICY,
        weights: LoadWeights = LoadWeights(),  # noqa: B008
        seed: int = 0,
        make_tables: MakeTables = best_tables,
    ) -> None:
        """``seed`` is for policies that draw. Raises ConfigError for an unknown policy."""
        check_policy(policy)
        self._tables = make_tables(weights)
        self.index = self._tables.index
        self.loads = self._tables.loads
        self._replicas: dict[int, _Replica] = {}
        self._policy = POLICIES[policy](Known(self._tables), seed)

    @property
    def replicas(self) -> int:
        """The set of all of them."""
        return sum(1 << number for number in self._replicas)

    def join(self, assumed: int | None = None, chain: int = 0) -> int:
        """Add a replica; returns its number.

        ``assumed``: how many keys it is assumed to hold; None: it reports them (:meth:`reported`).
        ``chain``: the number of the chain of queries that it names them by.
        """
        number = next(n for n in range(len(self._replicas) + 1) if n not in self._replicas)
        if assumed is None:
            book = self._tables.reported(number)
            self._replicas[number] = _Replica(book, book, chain)
        else:
            self._replicas[number] = _Replica(self._tables.assumed(number, assumed), None, chain)
        self.loads.join(number)
        return number

    def leave(self, number: int) -> None:
        """Remove a replica; requests that are open there may still end."""
        self._replicas.pop(number).book.leave()
        self.loads.leave(number)

    def reported(self, number: int) -> ReportingBook:
        """The book of a replica that reports. Raises TypeError for one that does not."""
        book = self._replicas[number].reports
        if book is None:
            raise TypeError(f"replica {number} reports nothing")
        return book

    def forget(self, number: int) -> None:
        """Note that a replica's cache is empty."""
        self._replicas[number].book.clear()

    def choose(self, query: Query, among: int) -> Choice:
        """The replica, of a set that is not empty, that a request should get. Changes no book but
        the policy's own."""
        return self._policy.choose(query, among)

    def begin(self, query: Query, choice: Choice) -> Sent:
        """Note that a request was sent to its replica."""
        number, cached = choice
        replica = self._replicas[number]
        chains = query.chains
        chain = chains[replica.chain] if replica.chain < len(chains) else _NO_KEYS
        uncached = max(query.tokens - cached, 1)
        replica.book.begin(chain)
        self.loads.begin(number, uncached)
        return Sent(number, replica, cached, uncached, chain)

    def prefilled(self, sent: Sent) -> None:
        """Note that a request's first token has come; only the first call counts."""
        if sent.prefilling:
            sent.prefilling = False
            if self._replicas.get(sent.replica) is sent.at:
                self.loads.prefilled(sent.replica, sent.uncached)

    def end(self, sent: Sent) -> None:
        """Note that a request has ended, whatever way; only the first call counts."""
        if sent.prefilling is None:
            return
        left = sent.uncached if sent.prefilling else 0
        sent.prefilling = None
        if self._replicas.get(sent.replica) is sent.at:  # it has not left
            self.loads.end(sent.replica, left)
            sent.at.book.end(sent.chain)


__all__ = ["Chain", "Choice", "Query", "Router", "Sent"]
