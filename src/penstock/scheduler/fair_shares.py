"""The order in which tenants are served, and which of them holds more than its share."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from penstock.interface.messages import Tenant
from penstock.virtual_times import VirtualTimes

Rank = tuple[float, float]
"""The virtual times of a tenant and of its user within the tenant. The smaller goes first."""


class FairShares:
    """The virtual times of the tenants that have live sequences, and of each tenant's users.

    Users of a tenant have equal weights. It holds neither clocks nor sequences: the queues report
    to it which sequences arrive, wait, run and end.
    """

    def __init__(self) -> None:
        self._tenants = VirtualTimes()
        self._users: dict[str, VirtualTimes] = {}
        self.contended = False
        """Whether more than one tenant, or more than one user, has live sequences."""
        self.uncharged = 0

    @property
    def several_tenants(self) -> bool:
        return len(self._tenants) > 1

    def enter(self, tenant: Tenant) -> None:
        self._charge()
        self._tenants.enter(tenant.name, tenant.weight)
        self._users.setdefault(tenant.name, VirtualTimes()).enter(tenant.user, 1.0)
        self._look()

    def leave(self, tenant: Tenant) -> None:
        self._charge()
        self._tenants.leave(tenant.name)
        users = self._users[tenant.name]
        users.leave(tenant.user)
        if not len(users):
            del self._users[tenant.name]
        self._look()

    def wait(self, tenant: Tenant) -> None:
        self._charge()
        self._tenants.wait(tenant.name)
        self._users[tenant.name].wait(tenant.user)

    def wait_no_more(self, tenant: Tenant) -> None:
        self._tenants.wait_no_more(tenant.name)
        self._users[tenant.name].wait_no_more(tenant.user)

    def let_in(self, tenant: Tenant) -> None:
        self._charge()
        self._tenants.let_in(tenant.name)
        self._users[tenant.name].let_in(tenant.user)

    def serve(self, tenant: Tenant, tokens: int) -> None:
        """Charge this many computed tokens to a tenant and its user."""
        self._tenants.serve(tenant.name, tokens)
        self._users[tenant.name].serve(tenant.user, tokens)

    def rank(self, tenant: Tenant) -> Rank:
        return (self._tenants.time(tenant.name), self._users[tenant.name].time(tenant.user))

    def gives_way(
        self, newcomer: Tenant, held: Mapping[str, int], places: int, wanted: int
    ) -> str | None:
        """The tenant that should give up some of the places it holds for a newcomer.

        It is the one that is furthest above its share, by weight. ``held`` has the number of
        places of each tenant, out of ``places`` in total; the newcomer wants ``wanted`` of them.
        Returns None if the newcomer's tenant would exceed its own share, rounded up, or if no
        other tenant exceeds its share.
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

    def _charge(self) -> None:
        if self.uncharged:
            assert not self.contended
            (name,) = self._users
            (user,) = self._users[name].names()
            self.serve(Tenant(name, user=user), self.uncharged)
            self.uncharged = 0
