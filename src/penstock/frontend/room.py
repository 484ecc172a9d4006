"""The bound on open sequences, and how tenants share it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import OverloadedError, RequestError
from penstock.interface.messages import Tenant


@dataclass
class _Open:
    sequences: int
    weight: float


class Room:
    """A number of ``places`` for open sequences; None is any number.

    One tenant may take all of them while no other asks. When all are taken, a tenant is still
    admitted while it holds no more than its share: the places are divided by weight among the
    tenants that hold any and itself. There are, in total, at most twice ``places`` sequences. So
    no tenant can keep others out.
    """

    def __init__(self, places: int | None) -> None:
        self.places = places
        self.taken = 0
        self._open: dict[str, _Open] = {}

    def check(self, tenant: Tenant, sequences: int) -> None:
        """Raise OverloadedError if there is no room for this many sequences of the tenant now, and
        RequestError if there never will be."""
        places = self.places
        if places is None or self.taken + sequences <= places:
            return
        if sequences > places:
            raise RequestError(
                f"n is {sequences}, more sequences than the {places} that may be open", "n"
            )
        own = self._open.get(tenant.name)
        others = sum(each.weight for each in self._open.values() if each is not own)
        share = places * tenant.weight / (tenant.weight + others)
        held = 0 if own is None else own.sequences
        if held + sequences <= share and self.taken + sequences <= 2 * places:
            return
        raise OverloadedError(
            f"{self.taken} sequences are running and waiting, {held} of them yours, and no more "
            "may; send fewer at once, or the request again later"
        )

    def enter(self, tenant: Tenant, sequences: int) -> None:
        """Take places for the sequences of a tenant, which :meth:`check` has let pass."""
        own = self._open.setdefault(tenant.name, _Open(0, tenant.weight))
        own.sequences += sequences
        own.weight = tenant.weight
        self.taken += sequences

    def leave(self, tenant: Tenant, sequences: int) -> None:
        """Free the places of sequences that have ended."""
        own = self._open[tenant.name]
        own.sequences -= sequences
        self.taken -= sequences
        if own.sequences == 0:
            del self._open[tenant.name]
