"""Where a process listens."""

from __future__ import annotations

import ipaddress

import msgspec

from penstock.errors import ConfigError


class Address(msgspec.Struct, frozen=True):
    """A host, by name or number, and a TCP port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, least_port: int = 1) -> Address:
        """``HOST:PORT``, or ``[HOST]:PORT`` of IPv6. Raises ConfigError."""
        host, _, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if bracketed else host
        valid = port.isdecimal() and least_port <= int(port) < 1 << 16
        if not host or not valid or (":" in host) != bracketed:
            raise ConfigError(f"not HOST:PORT: {text!r} (like 10.0.0.7:8100, or [::1]:8100)")
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
