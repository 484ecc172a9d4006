"""How the events of streams travel: chunks, old clients, and many at once."""

from __future__ import annotations

import json
import socket
from http.client import HTTPConnection

import pytest
from support.fake_core import completion
from support.http_client import JSON, Server
from support.waiting import PATIENCE_S

BODY = {"model": "fake", "prompt": "abc", "max_tokens": 40, "stream": True}


def connection(server: Server) -> HTTPConnection:
    return HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]), timeout=PATIENCE_S)


def text(body: bytes) -> str:
    events = [line for line in body.split(b"\n\n") if line]
    assert events.pop() == b"data: [DONE]"
    choices = [json.loads(event.removeprefix(b"data: "))["choices"] for event in events]
    return "".join(choice[0]["text"] for choice in choices if choice)


def test_a_connection_is_used_again_after_a_stream(server: Server) -> None:
    http = connection(server)
    for _ in range(3):
        http.request("POST", "/v1/completions", json.dumps(BODY), JSON)
        response = http.getresponse()
        assert response.headers["transfer-encoding"] == "chunked"
        assert text(response.read()) == bytes(completion(list(b"abc"), 40)).decode()
    http.close()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_each_version_of_http_has_its_framing(server: Server, version: str) -> None:
    """An HTTP/1.0 client is sent no chunks: the connection's end is the answer's."""
    data = json.dumps(BODY).encode()
    head = f"POST /v1/completions HTTP/{version}\r\nHost: x\r\nConnection: close\r\n"
    head += "Content-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as sock:
        sock.settimeout(PATIENCE_S)
        sock.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        with sock.makefile("rb") as file:
            answer = file.read()
    head_of_answer, _, body = answer.partition(b"\r\n\r\n")
    assert b" 200 " in head_of_answer
    if version == "1.0":
        assert b"chunked" not in head_of_answer
    else:
        assert body.endswith(b"0\r\n\r\n")
        parts = body.split(b"\r\n")
        sizes, pieces = parts[::2], parts[1::2]
        assert [int(size, 16) for size in sizes[:-1]] == [len(piece) for piece in pieces]
        body = b"".join(pieces)
    assert text(body) == bytes(completion(list(b"abc"), 40)).decode()


def test_tokens_that_share_events_are_all_there(server: Server) -> None:
    """The pause between events of 100 sequences is longer than a step."""
    body = {**BODY, "n": 100, "logprobs": 1, "stream_options": {"include_usage": True}}
    lines = server.post("/v1/completions", body).text.split("\n\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert events[-1]["usage"]["completion_tokens"] == 100 * 40
    texts, tokens = [""] * 100, [0] * 100
    for event in events[:-1]:
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["text"]
        tokens[choice["index"]] += len(choice["logprobs"]["tokens"])
    assert texts == [bytes(completion(list(b"abc"), 40, i)).decode() for i in range(100)]
    assert tokens == [40] * 100
