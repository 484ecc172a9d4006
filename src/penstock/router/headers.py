"""Which headers pass the router, there and back."""

from __future__ import annotations

from typing import Final

from penstock.router.exchange import Headers
from penstock.server.open_requests import REQUEST_ID

_HOPS: Final = b"x-forwarded-for"
_HOP: Final = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te"),
        *(b"trailer", b"transfer-encoding", b"upgrade", b"proxy-connection"),
    }
)
"""Headers that are of one connection alone (RFC 9110, 7.6.1)."""
_NOT_SENT: Final = _HOP | {
    *(b"host", b"content-length", b"expect", b"accept-encoding", b"origin", _HOPS),
    REQUEST_ID.encode(),
}
"""What is left out of a client's headers. Compression would hold a stream back, and which pages may
ask is decided here."""
_NOT_PASSED: Final = _HOP | {b"date", b"server", REQUEST_ID.encode()}
"""What is left out of a replica's headers."""


def sent_headers(headers: Headers, request_id: str, client: str | None) -> Headers:
    """A client's headers for a replica; ``client`` is its address."""
    dropped = _NOT_SENT | _named(headers)
    hops = [value for name, value in headers if name == _HOPS]
    if client is not None:
        hops.append(client.encode("latin-1"))
    own = [
        (b"accept-encoding", b"identity"),
        (REQUEST_ID.encode(), request_id.encode("ascii")),
        (_HOPS, b", ".join(hops)),
    ]
    return [*((name, value) for name, value in headers if name not in dropped), *own]


def passed_headers(headers: Headers) -> list[tuple[bytes, bytes]]:
    """A replica's headers for the client."""
    dropped = _NOT_PASSED | _named(headers) | {b"content-length"}
    return [(name, value) for name, value in headers if name not in dropped]


def _named(headers: Headers) -> set[bytes]:
    """The headers that ``Connection`` names as its own."""
    return {
        each.strip().lower()
        for name, value in headers
        if name == b"connection"
        for each in value.split(b",")
    }
