"""Bytes that are not quite HTTP, or not sent as one would."""

from __future__ import annotations

from collections.abc import Iterator

from hostile.case import Case

_HOST = b"Host: 127.0.0.1\r\n"
_JSON = b"Content-Type: application/json\r\n"
_BODY = b'{"model": "demo", "prompt": "a", "max_tokens": 1}'
_POST = b"POST /v1/completions HTTP/1.1\r\n" + _HOST + _JSON


def cases(model: str) -> Iterator[Case]:
    body = _BODY.replace(b"demo", model.encode())
    length = b"Content-Length: %d\r\n" % len(body)
    get = b"GET /health HTTP/1.1\r\n" + _HOST
    chunked = _POST + b"Transfer-Encoding: chunked\r\n\r\n"
    whole: dict[str, bytes] = {
        "nothing": b"",
        "new lines": b"\r\n" * 1000,
        "garbage": bytes(range(256)) * 40,
        "TLS": bytes.fromhex("1603010200010001fc0303") + b"\0" * 500,
        "HTTP/0.9": b"GET /health\r\n\r\n",
        "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "HTTP/9.9": b"GET /health HTTP/9.9\r\n" + _HOST + b"\r\n",
        "no host": b"GET /health HTTP/1.1\r\n\r\n",
        "two hosts": get + b"Host: example.com\r\n\r\n",
        "another host": b"GET /v1/models HTTP/1.1\r\nHost: example.com\r\n\r\n",
        "both lengths": _POST + length + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "two lengths": _POST + length + b"Content-Length: 1\r\n\r\n" + body,
        "a negative length": _POST + b"Content-Length: -1\r\n\r\n" + body,
        "an absurd length": _POST + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n" + body,
        "a length in words": _POST + b"Content-Length: ten\r\n\r\n" + body,
        "a head of 1 MB": get + b"X-Long: " + b"a" * 1_000_000 + b"\r\n\r\n",
        "a head of 66 KB": get + b"X-Long: " + b"a" * 66_000 + b"\r\n\r\n",
        "50,000 headers": get + b"X-A: b\r\n" * 50_000 + b"\r\n",
        "a long path": b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\n" + _HOST + b"\r\n",
        "a path with a null": b"GET /\0 HTTP/1.1\r\n" + _HOST + b"\r\n",
        "a path in Latin 1": b"GET /\xe9 HTTP/1.1\r\n" + _HOST + b"\r\n",
        "a header with a null": get + b"X-A: \0\r\n\r\n",
        "a folded header": get + b"X-A: b\r\n c\r\n\r\n",
        "bare new lines": b"GET /health HTTP/1.1\nHost: 127.0.0.1\n\n",
        "a method of its own": b"BREW /health HTTP/1.1\r\n" + _HOST + b"\r\n",
        "a chunk of absurd size": chunked + b"f" * 40 + b"\r\n",
        "a chunk of no size": chunked + b"\r\n\r\n",
        "a chunk extension of 1 MB": chunked + b"1;" + b"a" * 1_000_000 + b"\r\n",
        "a million chunks": chunked + b"1\r\n \r\n" * 1_000_000 + b"0\r\n\r\n",
        "a trailer": chunked + b"%x\r\n%s\r\n0\r\nX-A: b\r\n\r\n" % (len(body), body),
        "an expectation": _POST + length + b"Expect: 100-continue\r\n\r\n" + body,
        "another expectation": _POST + length + b"Expect: a miracle\r\n\r\n" + body,
        "an upgrade": get + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        "an encoding": _POST + length + b"Content-Encoding: gzip\r\n\r\n" + body,
        "text": _POST.replace(b"application/json", b"text/plain") + length + b"\r\n" + body,
        "a thousand requests": (get + b"\r\n") * 1000,
    }
    for name, data in whole.items():
        yield Case(name, data)
    yield Case("half a head", _POST[:30], closes_early=True)
    yield Case("half a body", _POST + length + b"\r\n" + body[:10], closes_early=True)
