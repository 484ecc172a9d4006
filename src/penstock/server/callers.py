"""The callers of the HTTP API, and the priorities that they may ask for."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from penstock.interface.messages import RequestOptions, Tenant
from penstock.server.errors import ApiError


class Asking(Protocol):
    """The fields of a body, in any dialect, that say how its request is scheduled and cached."""

    @property
    def priority(self) -> int | None: ...

    @property
    def cache_salt(self) -> str | None: ...

    @property
    def safety_identifier(self) -> str | None:
        """The end user whom the caller asks for, of any length."""
        ...

    @property
    def user(self) -> str | None:
        """An older name of the same."""
        ...


@dataclass(frozen=True)
class Caller:
    """A tenant of the engine: the holder of an API key or, without keys, a client address."""

    name: str = ""
    weight: float = 1.0
    best_priority: int | None = 0
    """Lowest priority number that it may ask for (lower goes first); None means any."""
    behind: int | None = None
    """The best priority that its requests have, whatever they ask for; None means what they ask
    for."""
    adapter: str = ""
    """The digest of the adapter that its request names as its model; empty: the model itself."""

    @property
    def tenant(self) -> Tenant:
        return Tenant(self.name, self.weight)

    def options(self, body: Asking) -> RequestOptions:
        """Return the engine's options for a request. Raises ApiError for a priority that the caller
        may not use."""
        asked, user = body.priority or 0, body.safety_identifier or body.user
        if self.best_priority is not None and asked < self.best_priority:
            raise ApiError(
                403,
                f"priority is {asked}, and {self.best_priority} is the best that may be asked for "
                "here (lower goes first); leave it out, or have the server's operator allow more",
                type="permission_error",
                param="priority",
                code="priority_not_allowed",
            )
        if self.behind is not None:
            asked = max(asked, self.behind)
        name = "" if not user else blake2b(user.encode(), digest_size=8).hexdigest()
        return RequestOptions(
            priority=asked,
            cache_salt=body.cache_salt or "",
            tenant=Tenant(self.name, self.weight, name),
            adapter=self.adapter,
        )


def address_name(client: tuple[str, int] | None) -> str:
    """Return the caller name of an address; for IPv6 that of its network, since one client has all
    of it."""
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
