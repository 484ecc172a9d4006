"""Names under which a server may be reached: parsing ``Host`` headers, and the rule for them."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection
from dataclasses import dataclass

ANY = "*"

_HOST = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:/@\s]+))(?::([0-9]{0,5}))?")


@dataclass(frozen=True)
class HostRule:
    """Which ``Host`` headers are taken. Addresses are no names that could be made to point here."""

    names: frozenset[str]
    """Host names that are accepted, and addresses that an option allows."""
    loopback: bool
    """Whether the server listens on a loopback address; other addresses are then refused, unless
    ``names`` has them."""

    @classmethod
    def of(
        cls, host: str, address: str, allowed: Collection[str], keys_needed: bool
    ) -> HostRule | None:
        """Return the rule of a server that listens on ``address``, or ``host``; None accepts all.

        ``allowed`` are further names, as :func:`plain_host` writes them. With keys, a
        rebinding page cannot ask: it has no key. So there is a rule only if ``allowed`` asks.
        """
        if ANY in allowed or (keys_needed and not allowed):
            return None
        names = {"localhost", *allowed}
        loopback = _is_loopback(address)
        if not loopback:
            machine = socket.gethostname().lower()
            short = machine.partition(".")[0]
            names |= {machine, short, f"{short}.local", host.lower().removesuffix(".")}
        return cls(frozenset(names), loopback)

    def takes(self, header: str) -> bool:
        found = split_host(header)
        if found is None:
            return False
        name, _ = found
        if name in self.names:
            return True
        return _is_address(name) and (not self.loopback or _is_loopback(name))


def plain_host(text: str) -> str:
    """Normalize ``text`` for comparison.

    A name becomes lower case, an address takes its usual form, and ``*`` stays. Raises ValueError
    if ``text`` is none of these, or has a port.
    """
    if text == ANY:
        return text
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if _is_address(bare):
        return str(ipaddress.ip_address(bare))
    name = text.encode("idna").decode().lower().removesuffix(".")
    if not re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", name):
        raise ValueError(text)
    return name


def split_host(host: str) -> tuple[str, int | None] | None:
    """Split ``HOST[:PORT]`` into a normalized host and a port; None if it has another form."""
    found = _HOST.fullmatch(host)
    if found is None:
        return None
    address, name, port = found.groups()
    if address is not None:
        if not _is_address(address):
            return None
        name = str(ipaddress.ip_address(address))
    return name.lower().removesuffix("."), int(port) if port else None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
