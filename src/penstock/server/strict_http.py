"""h11 with stricter rules: limits of heads and chunks, and ambiguous framing refused."""

from __future__ import annotations

import re

import h11

MAX_HEAD_BYTES = 64 << 10
"""Longest request head, from the request line to the empty line, in bytes."""
MAX_HEADERS = 256
MAX_TINY_CHUNKS = 4096
"""Most chunks of a body that average less than ``TINY`` bytes: each costs as much as a large chunk,
so a body of a few megabytes could keep the server busy for seconds."""
TINY = 64

_HEAD_END = re.compile(rb"\n\r?\n")
_ABSOLUTE = re.compile(rb"(?i:https?)://(?P<host>[^/?#]+)(?P<path>/[^#]*)?(?P<query>\?[^#]*)?")
_TLS = 0x16
_VERSIONS = (b"1.0", b"1.1")


class StrictConnection(h11.Connection):
    """The server's side of one HTTP/1 connection.

    A violation by the client raises RemoteProtocolError, and ``refusal`` says how to answer. After
    the client has ended its side, ``next_event`` keeps returning NEED_DATA instead of reporting the
    end again and again.
    """

    def __init__(self) -> None:
        # h11's own limit holds for incomplete heads alone; ours is looked at before.
        super().__init__(h11.SERVER, MAX_HEAD_BYTES)
        self._seen = 0  # bytes of the present head in which its end is not
        self._chunks = 0
        self._body = 0
        self.refusal = (400, "the request is not valid")
        """Status and text of the answer to the error that ``next_event`` raised last."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        in_head = self.their_state is h11.IDLE
        try:
            if in_head:
                self._check_head()
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._check_request(event)
                event = _origin_form(event)
            elif isinstance(event, h11.Data):
                self._check_chunk(event)
        except h11.RemoteProtocolError as error:
            # h11 has 431 for any line that is too long, and 501 for encodings.
            too_long = in_head and error.error_status_hint == 431
            self.refusal = 431 if too_long else 400, str(error)
            raise
        if isinstance(event, h11.ConnectionClosed):
            return h11.NEED_DATA
        return event

    @property
    def head_begun(self) -> bool:
        """Whether a request head has arrived in part, but not completely."""
        return self.their_state is h11.IDLE and bool(self.trailing_data[0])

    def _check_head(self) -> None:
        received, _ = self.trailing_data
        if received[:1] == bytes((_TLS,)):
            raise h11.RemoteProtocolError("this port speaks HTTP, and was asked in TLS")
        if received.startswith((b"\n", b"\r\n")):
            return  # no head
        found = _HEAD_END.search(received, max(0, self._seen - 2))
        size = len(received) + 1 if found is None else found.end()  # the rest is a byte at least
        self._seen = len(received) if found is None else 0
        if size > MAX_HEAD_BYTES:
            raise h11.RemoteProtocolError(
                f"the head of the request is longer than {MAX_HEAD_BYTES} bytes", 431
            )
        # The request line and the empty line are no headers.
        if received.count(b"\n", 0, size) - 2 > MAX_HEADERS:
            raise h11.RemoteProtocolError(f"the request has more than {MAX_HEADERS} headers", 431)

    def _check_request(self, request: h11.Request) -> None:
        self._chunks = self._body = 0
        if request.http_version not in _VERSIONS:
            raise h11.RemoteProtocolError("this server speaks HTTP/1.1 and 1.0")
        names = [name for name, _ in request.headers]
        if b"transfer-encoding" not in names:
            return
        # A proxy that forwards such requests may find another end of the body than we do.
        if b"content-length" in names:
            raise h11.RemoteProtocolError(
                "the request has both Content-Length and Transfer-Encoding"
            )
        if request.http_version != b"1.1":
            raise h11.RemoteProtocolError("a request in HTTP/1.0 has no Transfer-Encoding")

    def _check_chunk(self, data: h11.Data) -> None:
        self._body += len(data.data)
        if not data.chunk_start:
            return
        self._chunks += 1
        if self._chunks > MAX_TINY_CHUNKS and self._body < TINY * self._chunks:
            raise h11.RemoteProtocolError(
                f"the body comes in chunks of less than {TINY} bytes; send larger ones"
            )


def _origin_form(request: h11.Request) -> h11.Request:
    """Rewrite a request whose target is a whole URL: its path as target, and its host as Host.

    Servers must accept the absolute form too, and then ignore the Host header (RFC 9112, 3.2.2).
    """
    found = _ABSOLUTE.fullmatch(request.target)
    if found is None:
        return request
    headers = [(name, value) for name, value in request.headers if name != b"host"]
    return h11.Request(
        method=request.method,
        target=(found["path"] or b"/") + (found["query"] or b""),
        headers=[(b"host", found["host"]), *headers],
        http_version=request.http_version,
    )
