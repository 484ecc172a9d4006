"""Many streaming clients in one thread, as cheap as Python allows.

While it is being timed, a stream only receives bytes and looks whether they end as a chunked
answer does; what they say is read afterwards. So the clients take little of a machine that they
share with what they measure, and what they do take is known: it is this process's processor time.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from service.process import HOST

END = b"0\r\n\r\n"
"""The last chunk of an HTTP/1.1 answer. No event ends so: events end with an empty line, and
the size of a chunk before it is no single 0."""


@dataclass
class Reply:
    """One answer as it came."""

    began: float
    """When its request was sent; all times are time.monotonic()'s."""
    pieces: list[bytes] = field(default_factory=list)
    """What each receive brought."""
    times: list[float] = field(default_factory=list)
    """When."""

    @property
    def body(self) -> bytes:
        """All chunks joined. Raises RuntimeError if the answer is no whole chunked one."""
        head, _, rest = b"".join(self.pieces).partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"the server answered {head[:60]!r} {rest[:300]!r}")
        return unchunked(rest)


@dataclass(frozen=True)
class Said:
    """What the events of one answer say."""

    text: str
    tokens: int
    events: int
    """Those that have text."""


def post(model: str, prompt: Sequence[int], output: int) -> bytes:
    """A request for exactly ``output`` tokens, streamed."""
    body = json.dumps(
        {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": output,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    return (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )


class Clients:
    """Connections that are open before the clock starts."""

    def __init__(self, port: int, count: int) -> None:
        self._sockets = [socket.create_connection((HOST, port), 60) for _ in range(count)]

    def run(self, requests: Sequence[bytes]) -> list[Reply]:
        """Send one request on each connection at once; the answers when all are complete.

        Raises RuntimeError if a connection is closed before.
        """
        replies: dict[int, Reply] = {}
        by_descriptor = {sock.fileno(): sock for sock in self._sockets}
        poll = select.epoll()
        try:
            for sock, request in zip(self._sockets, requests, strict=True):
                replies[sock.fileno()] = Reply(time.monotonic())
                poll.register(sock.fileno(), select.EPOLLIN)
                sock.sendall(request)
            left = len(requests)
            while left:
                ready = poll.poll()
                now = time.monotonic()
                for descriptor, _ in ready:
                    data = by_descriptor[descriptor].recv(1 << 16)
                    if not data:
                        raise RuntimeError("the server closed a connection within an answer")
                    reply = replies[descriptor]
                    reply.pieces.append(data)
                    reply.times.append(now)
                    if data.endswith(END) or (len(data) < len(END) and _ended(reply)):
                        left -= 1
                        poll.unregister(descriptor)  # it may be closed before the others end
        finally:
            poll.close()
        return list(replies.values())

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


def read(reply: Reply) -> Said:
    """Raises RuntimeError if the events tell an error or are not complete."""
    text, tokens, events = "", None, 0
    lines = [line for line in reply.body.split(b"\n\n") if line]
    if not lines or lines[-1] != b"data: [DONE]":
        raise RuntimeError(f"a stream ended with {lines[-1:]!r}")
    for line in lines[:-1]:
        event = json.loads(line.removeprefix(b"data: "))
        if "error" in event:
            raise RuntimeError(f"the server says {event['error']}")
        for choice in event["choices"]:
            text += choice["text"]
            events += bool(choice["text"])
        if event["usage"] is not None:
            tokens = event["usage"]["completion_tokens"]
    if tokens is None:
        raise RuntimeError("the server did not say how many tokens it generated")
    return Said(text, tokens, events)


def unchunked(data: bytes) -> bytes:
    """The body that chunks hold. Raises RuntimeError if they are not complete."""
    parts: list[bytes] = []
    at = 0
    while True:
        line = data.find(b"\r\n", at)
        if line < 0:
            raise RuntimeError("an answer ends within its chunks")
        size = int(data[at:line], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(data[line + 2 : line + 2 + size])
        at = line + 2 + size + 2


def _ended(reply: Reply) -> bool:
    return b"".join(reply.pieces[-len(END) :]).endswith(END)
