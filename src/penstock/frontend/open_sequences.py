"""The bound on open sequences, and how tenants share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.errors import OverloadedError, RequestError
from penstock.interface.messages import Tenant

MAX_WAITING: Final = 1024
"""Sequences that may wait beside those that run, where nobody says how many."""


@dataclass
class _Open:
    sequences: int
    weight: float


class OpenSequences:
    """The number of open sequences, of which there may be ``limit`` (None: any number).

    One tenant may have all of them while no other asks. At the limit, a tenant is still admitted
    while it has no more than its share: the limit is divided by weight among the tenants that have
    any and itself. There are, in total, at most twice ``limit`` sequences. So no tenant can keep
    others out.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.count = 0
        self._open: dict[str, _Open] = {}

    def check(self, tenant: Tenant, sequences: int) -> None:
        """Raise OverloadedError unless the tenant may open this many sequences now, and
        RequestError if it never may."""
        limit = self.limit
        if limit is None or self.count + sequences <= limit:
            return
        if sequences > limit:
            raise RequestError(
                f"n is {sequences}, more sequences than the {limit} that may be open", "n"
            )
        own = self._open.get(tenant.name)
        others = sum(each.weight for each in self._open.values() if each is not own)
        share = limit * tenant.weight / (tenant.weight + others)
        held = 0 if own is None else own.sequences
        if held + sequences <= share and self.count + sequences <= 2 * limit:
            return
        raise OverloadedError(
            f"{self.count} sequences are running and waiting, {held} of them yours, and no more "
            "may; send fewer at once, or the request again later"
        )

    def add(self, tenant: Tenant, sequences: int) -> None:
        """Count the sequences of a tenant, which :meth:`check` has let pass."""
        own = self._open.setdefault(tenant.name, _Open(0, tenant.weight))
        own.sequences += sequences
        own.weight = tenant.weight
        self.count += sequences

    def remove(self, tenant: Tenant, sequences: int) -> None:
        """Stop counting sequences that have ended."""
        own = self._open[tenant.name]
        own.sequences -= sequences
        self.count -= sequences
        if own.sequences == 0:
            del self._open[tenant.name]


class Place:
    """Sequences of a tenant that count as open before they are, so that there is room for them
    when they come, whatever the limit is then."""

    def __init__(self, among: OpenSequences, tenant: Tenant, sequences: int) -> None:
        """Raises what :meth:`OpenSequences.check` raises."""
        among.check(tenant, sequences)
        among.add(tenant, sequences)
        self._among = among
        self._tenant = tenant
        self._left = sequences

    def take(self, sequences: int) -> bool:
        """Stop counting so many, which count by themselves from now on; False if it has fewer."""
        if sequences > self._left:
            return False
        self._give_back(sequences)
        return True

    def close(self) -> None:
        """Stop counting those that were not taken. Safe to repeat."""
        self._give_back(self._left)

    def _give_back(self, sequences: int) -> None:
        if sequences:
            self._left -= sequences
            self._among.remove(self._tenant, sequences)
