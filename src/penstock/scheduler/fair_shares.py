"""Which of several tenants is served next, and which of them has more than its share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from penstock.interface.messages import Tenant

Rank = tuple[float, float]
"""Smaller goes first: virtual times of a tenant, and of its user among the tenant's."""


@dataclass
class _Account:
    weight: float
    time: float
    """Tokens served over weight, from where it began."""
    live: int = 0
    waiting: int = 0


class VirtualTimes:
    """Start-time fair queueing (Goyal, Vin, Cheng 1996) with tokens as the cost, as Sheng et al.,
    "Fairness in serving large language models" (2024) have it for what cannot be told beforehand.

    Whoever has been served least, by weight, goes first. One that had nothing waiting begins, when
    it has again, no earlier than where the last one began that was let in: having asked for
    nothing is no credit, and what was taken while nobody else asked is no debt. While two always
    have something waiting, what they are served over their weights differs by a bounded amount.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._past: dict[str, float] = {}  # of those that left, while it is ahead of the present
        self._present = 0.0

    def __len__(self) -> int:
        """How many have live sequences."""
        return len(self._accounts)

    def names(self) -> list[str]:
        """Those that have live sequences."""
        return list(self._accounts)

    def enter(self, name: str, weight: float) -> None:
        """One more live sequence; the latest weight counts."""
        account = self._accounts.get(name)
        if account is None:
            time = max(self._past.pop(name, 0.0), self._present)
            account = self._accounts[name] = _Account(weight, time)
        account.weight = weight
        account.live += 1

    def leave(self, name: str) -> None:
        """One live sequence, which does not wait, less."""
        account = self._accounts[name]
        account.live -= 1
        if account.live == 0:
            del self._accounts[name]
            if self._accounts:
                self._past[name] = account.time
                self._past = {n: t for n, t in self._past.items() if t > self._present}
            else:
                self._past.clear()

    def wait(self, name: str) -> None:
        """A live sequence of it begins to wait."""
        account = self._accounts[name]
        if account.waiting == 0:
            account.time = max(account.time, self._present)
        account.waiting += 1

    def wait_no_more(self, name: str) -> None:
        self._accounts[name].waiting -= 1

    def let_in(self, name: str) -> None:
        """One that waited runs."""
        self._present = max(self._present, self._accounts[name].time)

    def serve(self, name: str, tokens: int) -> None:
        account = self._accounts[name]
        account.time += tokens / account.weight

    def time(self, name: str) -> float:
        return self._accounts[name].time

    def shares(self, places: float) -> dict[str, float]:
        """Of so many places, each one's."""
        total = sum(account.weight for account in self._accounts.values())
        return {name: places * each.weight / total for name, each in self._accounts.items()}

    def check_integrity(self) -> None:
        """Raise AssertionError unless counts agree."""
        for name, account in self._accounts.items():
            assert 0 <= account.waiting <= account.live, f"{name!r} waits more than it lives"
            assert account.live > 0, f"{name!r} is kept without a sequence"


class FairShares:
    """The tenants that have live sequences, and within each its users, whose shares are equal.

    Has neither clocks nor sequences: the queues tell it what comes, waits, runs and ends.
    """

    def __init__(self) -> None:
        self._tenants = VirtualTimes()
        self._users: dict[str, VirtualTimes] = {}
        self.contended = False
        """Whether there is more than one, tenant or user, to choose among."""
        self.unsettled = 0
        """Tokens that were computed for the only one there is, and not booked yet: a step of one
        tenant costs an addition."""

    @property
    def several_tenants(self) -> bool:
        return len(self._tenants) > 1

    def enter(self, tenant: Tenant) -> None:
        self._settle()
        self._tenants.enter(tenant.name, tenant.weight)
        self._users.setdefault(tenant.name, VirtualTimes()).enter(tenant.user, 1.0)
        self._look()

    def leave(self, tenant: Tenant) -> None:
        self._settle()
        self._tenants.leave(tenant.name)
        users = self._users[tenant.name]
        users.leave(tenant.user)
        if not len(users):
            del self._users[tenant.name]
        self._look()

    def wait(self, tenant: Tenant) -> None:
        self._settle()
        self._tenants.wait(tenant.name)
        self._users[tenant.name].wait(tenant.user)

    def wait_no_more(self, tenant: Tenant) -> None:
        self._tenants.wait_no_more(tenant.name)
        self._users[tenant.name].wait_no_more(tenant.user)

    def let_in(self, tenant: Tenant) -> None:
        self._settle()
        self._tenants.let_in(tenant.name)
        self._users[tenant.name].let_in(tenant.user)

    def serve(self, tenant: Tenant, tokens: int) -> None:
        """So many of its tokens are computed."""
        self._tenants.serve(tenant.name, tokens)
        self._users[tenant.name].serve(tenant.user, tokens)

    def rank(self, tenant: Tenant) -> Rank:
        return (self._tenants.time(tenant.name), self._users[tenant.name].time(tenant.user))

    def gives_way(
        self, newcomer: Tenant, held: Mapping[str, int], places: int, wanted: int
    ) -> str | None:
        """Which tenant should give some of the ``places`` it has ``held`` to a newcomer that wants
        so many: the one furthest above its share, by weight.

        None if the newcomer's tenant would come to more than its own share, rounded up, or nobody
        has more than theirs.
        """
        shares = self._tenants.shares(places)
        if held.get(newcomer.name, 0) + wanted > ceil(shares[newcomer.name]):
            return None
        above = [
            name
            for name, count in held.items()
            if name != newcomer.name and count > ceil(shares[name])
        ]
        return max(above, key=lambda name: held[name] / shares[name], default=None)

    def check_integrity(self) -> None:
        self._tenants.check_integrity()
        assert len(self._users) == len(self._tenants)
        for users in self._users.values():
            users.check_integrity()

    def _look(self) -> None:
        self.contended = len(self._tenants) > 1 or any(
            len(users) > 1 for users in self._users.values()
        )

    def _settle(self) -> None:
        if self.unsettled:
            assert not self.contended
            (name,) = self._users
            (user,) = self._users[name].names()
            self.serve(Tenant(name, user=user), self.unsettled)
            self.unsettled = 0
