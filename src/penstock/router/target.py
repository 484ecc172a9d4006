"""Where a replica is."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from penstock.errors import ConfigError
from penstock.server_url import split_server_url

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Target:
    """A server's address, taken apart."""

    url: str
    """As users see it, without a slash at the end."""
    host: str
    port: int
    tls: bool
    authority: str
    """The value of the Host header."""
    prefix: str
    """What paths begin with; empty, or a path without a slash at its end."""

    @classmethod
    def of(cls, url: str) -> Target:
        """Raises ConfigError for what is no URL of a server. ``/v1`` at its end is left out, since
        clients' paths bring it."""
        parts = split_server_url(url)
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        assert parts.hostname is not None
        try:
            prefix.encode("ascii")
            parts.hostname.encode("ascii")
        except UnicodeError:
            raise ConfigError(f"{url!r} has characters that must be escaped in a URL") from None
        return cls(
            url=f"{parts.scheme}://{parts.netloc}{prefix}",
            host=parts.hostname,
            port=parts.port or _PORTS[parts.scheme],
            tls=parts.scheme == "https",
            authority=parts.netloc,
            prefix=prefix,
        )

    def ssl_context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context() if self.tls else None
