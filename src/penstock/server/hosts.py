"""Names by which a server may be asked: what ``Host`` headers say, and the rule for them."""

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
    """Also of addresses that are allowed by option."""
    loopback: bool
    """The server listens on a loopback address: of addresses, only such ones are taken."""

    @classmethod
    def of(
        cls, host: str, address: str, allowed: Collection[str], keys_needed: bool
    ) -> HostRule | None:
        """For a server that listens on ``address``, which ``host`` stands for; None takes all.

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
    """``text`` as it is compared: a name in lower case, an address in its usual form, or ``*``.

    Raises ValueError where it is neither, or has a port.
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
    """Name or address in its usual form, and port; None where it is no ``HOST[:PORT]``."""
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
