"""Where a replica is."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass

from penstock.errors import ConfigError
from penstock.server_url import split_server_url

_PORTS = {"http": 80, "https": 443}
_OF_REQUEST = re.compile(r"/v1/(chat/completions|completions|responses|embeddings|models)$")


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
        path = parts.path.rstrip("/")
        if (of_request := _OF_REQUEST.search(path)) is not None:
            server = url.rstrip("/").removesuffix(of_request[0])
            raise ConfigError(
                f"{url!r} is where one asks a server; write the server's own: {server}"
            )
        prefix = path.removesuffix("/v1")
        assert parts.hostname is not None
        try:
            host = parts.hostname.encode("idna").decode("ascii")
            prefix.encode("ascii")
        except UnicodeError:
            raise ConfigError(f"{url!r} has characters that must be escaped in a URL") from None
        usual = _PORTS[parts.scheme]
        port = usual if parts.port is None else parts.port
        shown = f"[{host}]" if ":" in host else host
        authority = shown if port == usual else f"{shown}:{port}"
        return cls(
            url=f"{parts.scheme}://{authority}{prefix}",
            host=host,
            port=port,
            tls=parts.scheme == "https",
            authority=authority,
            prefix=prefix,
        )

    def at(self, address: str) -> str:
        """The URL of the same server by one of its addresses."""
        host = f"[{address}]" if ":" in address else address
        scheme = "https" if self.tls else "http"
        return f"{scheme}://{host}:{self.port}{self.prefix}"

    def ssl_context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context() if self.tls else None
