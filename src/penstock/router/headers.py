"""Which headers pass the router, there and back."""

from __future__ import annotations

from typing import Final

from penstock.router.exchange import Headers
from penstock.router.target import Target
from penstock.server.open_requests import REQUEST_ID

_HOPS: Final = b"x-forwarded-for"
_VIA: Final = b"via"
"""The routers that a request has passed (RFC 9110, 7.6.3): one that comes back is known by it."""
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


def via(router: str) -> tuple[bytes, bytes]:
    """The header by which a router of this name knows its own requests."""
    return _VIA, b"1.1 " + router.encode("ascii")


def came_by(headers: Headers, router: str) -> bool:
    """Whether a request has passed the router of this name already."""
    own = via(router)[1]
    return any(
        own == each.strip() for name, value in headers if name == _VIA for each in value.split(b",")
    )


def sent_headers(headers: Headers, request_id: str, client: str | None, router: str) -> Headers:
    """A client's headers for a replica; ``client`` is its address, ``router`` this one's name."""
    dropped = _NOT_SENT | _named(headers)
    hops = [value for name, value in headers if name == _HOPS]
    if client is not None:
        hops.append(client.encode("latin-1"))
    own = [
        (b"accept-encoding", b"identity"),
        (REQUEST_ID.encode(), request_id.encode("ascii")),
        (_HOPS, b", ".join(hops)),
        via(router),
    ]
    return [*((name, value) for name, value in headers if name not in dropped), *own]


def passed_headers(headers: Headers, replica: Target) -> list[tuple[bytes, bytes]]:
    """A replica's headers for the client, but for the length of the body."""
    dropped = _NOT_PASSED | _named(headers) | {b"content-length"}
    return [
        (name, _here(value, replica) if name == b"location" else value)
        for name, value in headers
        if name not in dropped
    ]


def _here(location: bytes, replica: Target) -> bytes:
    """Where a replica redirects to: a path that is its own is the router's."""
    origin = f"{'https' if replica.tls else 'http'}://{replica.authority}".encode("ascii")
    path = location.removeprefix(origin)
    if not path.startswith(b"/") or path.startswith(b"//"):
        return location
    return path.removeprefix(replica.prefix.encode("ascii")) or b"/"


def _named(headers: Headers) -> set[bytes]:
    """The headers that ``Connection`` names as its own."""
    return {
        each.strip().lower()
        for name, value in headers
        if name == b"connection"
        for each in value.split(b",")
    }
