"""Clients that end their own side: those that wait for the answer, and those that are gone."""

from __future__ import annotations

import json
import socket

from support.fake_core import completion
from support.http_client import Server
from support.http_server import MAX_BODY_BYTES
from support.streams import expected, nothing_left, posted, raw, written
from support.waiting import PATIENCE_S, until

LONG = {"model": "fake", "prompt": "abc", "max_tokens": 250}  # 2.5 s
SHORT = {**LONG, "max_tokens": 20}
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


def asked(server: Server, data: bytes) -> bytes:
    """All that comes when the client's side is ended behind ``data``."""
    with raw(server) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: sock.recv(1 << 16), b""))


def text(answer: bytes) -> str:
    while answer.startswith(INTERIM):  # looks for the client, as many as there was time for
        answer = answer[len(INTERIM) :]
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    content: str = json.loads(body)["choices"][0]["text"]
    return content


def test_a_short_answer_comes(slow_server: Server) -> None:
    assert text(asked(slow_server, posted(SHORT))) == expected("abc", 20)


def test_a_long_answer_comes_after_a_look_for_the_client(slow_server: Server) -> None:
    answer = asked(slow_server, posted(LONG))
    assert answer.startswith(INTERIM)
    assert text(answer) == bytes(completion(list(b"abc"), 250)).decode()


def test_an_old_client_hears_the_answer_alone(slow_server: Server) -> None:
    data = posted(LONG).replace(b"HTTP/1.1", b"HTTP/1.0")
    assert text(asked(slow_server, data)) == expected("abc", 250)


def test_a_stream_comes_whole(slow_server: Server) -> None:
    answer = asked(slow_server, posted({**LONG, "stream": True}))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"data: [DONE]" in body
    events = b"\n".join(line for line in body.splitlines() if line.startswith(b"data: "))
    assert written(events) == (expected("abc", 250), "length")


def test_clients_that_are_gone_are_found_out(slow_server: Server) -> None:
    """Whether they were to be streamed to or not, and whether anything was written yet."""
    forever = {**LONG, "max_tokens": 400, "n": 8}
    with nothing_left(slow_server):
        for body in (forever, {**forever, "stream": True}):
            with raw(slow_server) as sock:
                sock.sendall(posted(body))
                until(lambda: slow_server.status()["requests"], PATIENCE_S, "begun")
            until(lambda: not slow_server.status()["requests"], PATIENCE_S, "stopped")
        generated = slow_server.metric("request_success_total", finished_reason="length")
        with raw(slow_server) as sock:
            sock.sendall(posted({**forever, "prompt": ["a", "b"]}))
            sock.shutdown(socket.SHUT_WR)  # first one, then the other
            until(lambda: slow_server.status()["requests"], PATIENCE_S, "begun")
        until(lambda: not slow_server.status()["requests"], PATIENCE_S, "stopped")
        after = slow_server.metric("request_success_total", finished_reason="length")
        assert after == generated


def test_an_answer_before_the_end_of_the_body_is_heard(server: Server) -> None:
    """The client sends all it has before it listens; a reset would take the answer away."""
    data = b"x" * (MAX_BODY_BYTES * 20)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with raw(server) as sock:
        sock.sendall(head + b"Content-Length: %d\r\n\r\n" % len(data) + data)
        answer = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
