"""Who asks over HTTP, and what they may ask for."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from hashlib import blake2b

from penstock.interface.messages import RequestOptions, Tenant
from penstock.server.errors import ApiError


@dataclass(frozen=True)
class Caller:
    """A tenant of the engine: who has a key, or without keys who asks from an address."""

    name: str = ""
    weight: float = 1.0
    best_priority: int | None = 0
    """The lowest number that it may ask for; None: any."""

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.name, self.weight)

    def options(
        self, priority: int | None, cache_salt: str | None, user: str | None
    ) -> RequestOptions:
        """What the fields of a request come to. Raises ApiError for a priority that it may not
        have. ``user``: whom the caller asks for, of any length."""
        asked = priority or 0
        if self.best_priority is not None and asked < self.best_priority:
            raise ApiError(
                403,
                f"priority is {asked}, and {self.best_priority} is the best that may be asked for "
                "here (lower goes first); leave it out, or have the server's operator allow more",
                type="permission_error",
                param="priority",
                code="priority_not_allowed",
            )
        name = "" if not user else blake2b(user.encode(), digest_size=8).hexdigest()
        return RequestOptions(
            priority=asked,
            cache_salt=cache_salt or "",
            tenant=Tenant(self.name, self.weight, name),
        )


def address_name(client: tuple[str, int] | None) -> str:
    """What those who ask from an address are called; of IPv6 the network, which one client has."""
    if client is None:
        return ""
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return client[0]
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        if mapped is not None:
            return str(mapped)
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address)
