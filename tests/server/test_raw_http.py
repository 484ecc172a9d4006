"""Bytes that are not quite HTTP, or not sent as one would: each is answered, and harms nobody."""

from __future__ import annotations

import json
import re
import select
import socket
from dataclasses import dataclass

import pytest
from support.http_client import Server
from support.streams import raw
from support.waiting import PATIENCE_S

from penstock.server.strict_http import MAX_HEAD_BYTES, MAX_HEADERS

HOST = b"Host: 127.0.0.1\r\n"
JSON = b"Content-Type: application/json\r\n"
BODY = b'{"model": "fake", "prompt": "a", "max_tokens": 1}'
GET = b"GET /health HTTP/1.1\r\n" + HOST
POST = b"POST /v1/completions HTTP/1.1\r\n" + HOST + JSON
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


@dataclass(frozen=True)
class Case:
    name: str
    data: bytes
    statuses: tuple[int, ...]
    """Statuses of the answers, one after another; interim ones included."""
    closes: bool = False
    """The server ends the connection; otherwise it answers another request on it."""
    half: bool = False
    """The client ends its own side behind ``data``."""


def head(size: int) -> bytes:
    """A GET whose head has that many bytes."""
    start = GET + b"X-Long: "
    return start + b"a" * (size - len(start) - 4) + b"\r\n\r\n"


CASES = [
    # Plain
    Case("plain", GET + b"\r\n", (200,)),
    Case("a body", POST + LENGTH + b"\r\n" + BODY, (200,)),
    Case("a body in chunks", CHUNKED + CHUNKS, (200,)),
    Case("HEAD", b"HEAD /health HTTP/1.1\r\n" + HOST + b"\r\n", (200,)),
    Case("HTTP/1.0", b"GET /health HTTP/1.0\r\n\r\n", (200,), closes=True),
    Case("close", GET + b"Connection: close\r\n\r\n", (200,), closes=True),
    Case("a whole URL", b"GET http://127.0.0.1/health HTTP/1.1\r\n" + HOST + b"\r\n", (200,)),
    Case("a URL that is a host", b"GET http://127.0.0.1 HTTP/1.1\r\n" + HOST + b"\r\n", (200,)),
    Case(
        "a URL with a body",
        POST.replace(b" /v1", b" http://localhost:8000/v1") + LENGTH + b"\r\n" + BODY,
        (200,),
    ),
    # Framing
    Case(
        "both lengths",
        POST + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS,
        (400,),
        closes=True,
    ),
    Case(
        "both lengths, the other way around",
        POST + b"transfer-encoding: chunked\r\n" + LENGTH + b"\r\n" + CHUNKS,
        (400,),
        closes=True,
    ),
    Case("two lengths", POST + LENGTH + b"Content-Length: 1\r\n\r\n" + BODY, (400,), closes=True),
    Case("one length twice", POST + LENGTH + LENGTH + b"\r\n" + BODY, (200,)),
    Case("a list of lengths", POST + b"Content-Length: 1, 2\r\n\r\n" + BODY, (400,), closes=True),
    Case("a negative length", POST + b"Content-Length: -1\r\n\r\n" + BODY, (400,), closes=True),
    Case("a signed length", POST + b"Content-Length: +5\r\n\r\n" + BODY, (400,), closes=True),
    Case("a length in words", POST + b"Content-Length: ten\r\n\r\n" + BODY, (400,), closes=True),
    Case("an absurd length", POST + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n", (400,), True),
    Case("a giant length", POST + b"Content-Length: " + b"9" * 15 + b"\r\n\r\n", (413,), True),
    Case("an encoding", POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", (400,), closes=True),
    Case("no encoding", POST + b"Transfer-Encoding: identity\r\n\r\n", (400,), closes=True),
    Case(
        "two encodings",
        POST + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n" + CHUNKS,
        (400,),
        closes=True,
    ),
    Case("a space before the colon", POST + b"Transfer-Encoding : chunked\r\n\r\n", (400,), True),
    Case(
        "chunks in HTTP/1.0",
        CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + CHUNKS,
        (400,),
        closes=True,
    ),
    # Chunks
    Case("a chunk of absurd size", CHUNKED + b"f" * 40 + b"\r\n", (400,), closes=True),
    Case("a chunk of giant size", CHUNKED + b"f" * 12 + b"\r\n" + b"a" * 300_000, (413,), True),
    Case("a chunk of no size", CHUNKED + b"\r\n\r\n", (400,), closes=True),
    Case("a chunk of negative size", CHUNKED + b"-1\r\n\r\n", (400,), closes=True),
    Case("a chunk that goes on", CHUNKED + b"1\r\n{a\r\n", (400,), closes=True),
    Case("a chunk with bare new lines", CHUNKED + b"1\n{\n0\n\n", (400,), closes=True, half=True),
    Case(
        "a chunk extension",
        CHUNKED + b"%x;name=value\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY),
        (200,),
    ),
    Case("a long chunk extension", CHUNKED + b"1;" + b"a" * 100_000, (400,), closes=True),
    Case("a million chunks", CHUNKED + b"1\r\n \r\n" * 1_000_000, (400,), closes=True),
    Case("a trailer", CHUNKED + CHUNKS[:-2] + b"X-A: b\r\n\r\n", (200,)),
    Case("a bad trailer", CHUNKED + CHUNKS[:-2] + b"X A: b\r\n\r\n", (400,), closes=True),
    Case("a long trailer", CHUNKED + CHUNKS[:-2] + b"X-A: " + b"b" * 100_000, (400,), True),
    # Heads
    Case("the longest head", head(MAX_HEAD_BYTES), (200,)),
    Case("a head too long", head(MAX_HEAD_BYTES + 1), (431,), closes=True),
    Case("a head too long, with a body", head(MAX_HEAD_BYTES + 1) + BODY, (431,), closes=True),
    Case("half a head too long", head(MAX_HEAD_BYTES + 1)[:-1], (431,), closes=True),
    Case("a head of a megabyte", head(1_000_000), (431,), closes=True),
    Case(
        "a second head too long", GET + b"\r\n" + head(MAX_HEAD_BYTES + 1), (200, 431), closes=True
    ),
    Case("the most headers", GET + b"X-A: b\r\n" * (MAX_HEADERS - 1) + b"\r\n", (200,)),
    Case("too many headers", GET + b"X-A: b\r\n" * MAX_HEADERS + b"\r\n", (431,), closes=True),
    Case("50,000 headers", GET + b"X-A: b\r\n" * 50_000 + b"\r\n", (431,), closes=True),
    Case("no host", b"GET /health HTTP/1.1\r\n\r\n", (400,), closes=True),
    Case("two hosts", GET + HOST + b"\r\n", (400,), closes=True),
    Case("bare new lines", GET.replace(b"\r", b"") + b"\n", (200,)),
    Case("a bare return", GET + b"X-A: b\rX-B: c\r\n\r\n", (400,), closes=True),
    Case("a folded header", GET + b"X-A: b\r\n c\r\n\r\n", (200,)),
    Case("a header with a null", GET + b"X-A: \0\r\n\r\n", (400,), closes=True),
    Case("a header without a name", GET + b": b\r\n\r\n", (400,), closes=True),
    Case("a header without a colon", GET + b"X-A\r\n\r\n", (400,), closes=True),
    Case("a header in Latin 1", GET + b"X-A: \xe9\r\n\r\n", (200,)),
    # Request lines
    Case("a long path", b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", (404,)),
    Case("a path with a null", b"GET /\0 HTTP/1.1\r\n" + HOST + b"\r\n", (400,), closes=True),
    Case("a quoted null", b"GET /%00 HTTP/1.1\r\n" + HOST + b"\r\n", (404,)),
    Case("no UTF-8", b"GET /%ff%fe HTTP/1.1\r\n" + HOST + b"\r\n", (404,)),
    Case("a path in Latin 1", b"GET /\xe9 HTTP/1.1\r\n" + HOST + b"\r\n", (400,), closes=True),
    Case("two spaces", b"GET  /health HTTP/1.1\r\n" + HOST + b"\r\n", (400,), closes=True),
    Case("dots", b"GET /v1/../health HTTP/1.1\r\n" + HOST + b"\r\n", (404,)),
    Case("a method of its own", b"BREW /health HTTP/1.1\r\n" + HOST + b"\r\n", (405,)),
    Case("a tunnel", b"CONNECT a.example:80 HTTP/1.1\r\n" + HOST + b"\r\n", (404,)),
    Case("everything", b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", (404,)),
    Case("HTTP/0.9", b"GET /health\r\n\r\n", (400,), closes=True),
    Case("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400,), closes=True),
    Case("HTTP/9.9", b"GET /health HTTP/9.9\r\n" + HOST + b"\r\n", (400,), closes=True),
    Case("garbage", bytes(range(256)) * 40, (400,), closes=True),
    Case("garbage in letters", b"hello\r\n\r\n", (400,), closes=True),
    Case("TLS", bytes.fromhex("1603010200010001fc0303") + b"\0" * 500, (400,), closes=True),
    Case("new lines", b"\r\n" * 1000, (400,), closes=True),
    # Expectations and upgrades
    Case("an expectation", POST + LENGTH + b"Expect: 100-continue\r\n\r\n" + BODY, (100, 200)),
    Case(
        "an expectation that is refused",
        b"POST /nothing HTTP/1.1\r\n" + HOST + LENGTH + b"Expect: 100-continue\r\n\r\n",
        (404,),
        closes=True,
    ),
    Case("another expectation", GET + b"Expect: a miracle\r\n\r\n", (200,)),
    Case("a WebSocket", GET + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", (200,)),
    Case("HTTP/2 offered", GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n", (200,)),
    # One after another
    Case("two at once", (GET + b"\r\n") * 2, (200, 200)),
    Case("a hundred at once", (GET + b"\r\n") * 100, (200,) * 100),
    Case("a body and another", POST + LENGTH + b"\r\n" + BODY + GET + b"\r\n", (200, 200)),
    Case(
        "after an error", b"GET /nothing HTTP/1.1\r\n" + HOST + b"\r\n" + GET + b"\r\n", (404, 200)
    ),
    Case(
        "after a body that nobody reads",
        b"POST /nothing HTTP/1.1\r\n" + HOST + LENGTH + b"\r\n" + BODY + GET + b"\r\n",
        (404, 200),
    ),
    Case("good, then garbage", GET + b"\r\n\0\r\n\r\n", (200, 400), closes=True),
    # Clients that end their own side
    Case("nothing", b"", (), closes=True, half=True),
    Case("half closed", GET + b"\r\n", (200,), closes=True, half=True),
    Case("half closed, HTTP/1.0", b"GET /health HTTP/1.0\r\n\r\n", (200,), True, half=True),
    Case("half closed, a body", POST + LENGTH + b"\r\n" + BODY, (200,), closes=True, half=True),
    Case("half closed, in chunks", CHUNKED + CHUNKS, (200,), closes=True, half=True),
    Case("half closed, two", (GET + b"\r\n") * 2, (200, 200), closes=True, half=True),
    Case("half closed, a hundred", (GET + b"\r\n") * 100, (200,) * 100, closes=True, half=True),
    Case("half a head", POST[:30], (400,), closes=True, half=True),
    Case("half a body", POST + LENGTH + b"\r\n" + BODY[:10], (400,), closes=True, half=True),
    Case("half a chunk", CHUNKED + CHUNKS[:20], (400,), closes=True, half=True),
    Case("no last chunk", CHUNKED + CHUNKS[:-5], (400,), closes=True, half=True),
]
STATUS = re.compile(rb"(?:^|\r\n\r\n|[}\n.])HTTP/1\.1 (\d{3}) ")


def exchange(sock: socket.socket, case: Case) -> bytes:
    """Send the case, and then another request where the connection should live."""
    data = case.data
    if not case.closes:
        data += b"GET /ready HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n"
    received = bytearray()
    sock.setblocking(False)
    sent = 0
    while True:
        wants = [sock] if sent < len(data) else []
        readable, writable, _ = select.select([sock], wants, [], PATIENCE_S)
        assert readable or writable, f"the server is silent after {bytes(received[-300:])!r}"
        if writable:
            sent += sock.send(data[sent : sent + 100_000])
            if sent == len(data) and case.half:
                sock.shutdown(socket.SHUT_WR)
        if case.half and not data and sent == 0:
            sock.shutdown(socket.SHUT_WR)
            sent = -1
        if readable:
            part = sock.recv(1 << 20)
            if not part:
                return bytes(received)
            received += part


def shown(case: Case) -> object:
    # Who sends nothing is waited for as long as anybody: half a minute.
    return pytest.param(case, id=case.name, marks=[] if case.data else [pytest.mark.slow])


@pytest.mark.parametrize("case", [shown(case) for case in CASES])
def test_every_connection_gets_its_answer(server: Server, case: Case) -> None:
    with raw(server) as sock:
        answers = exchange(sock, case)
    statuses = tuple(int(status) for status in STATUS.findall(answers))
    expected = case.statuses if case.closes else (*case.statuses, 200)
    assert statuses == expected, answers[-500:]
    if case.statuses and 400 <= case.statuses[-1] != 404 and case.closes:
        head, _, body = answers.rpartition(b"\r\n\r\n")
        assert b"connection: close" in head.lower()
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert 0 < len(error["message"]) < 500
    assert server.ready()
