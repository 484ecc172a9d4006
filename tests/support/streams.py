"""Streams that run beside a fault, and what must be as it was before."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.bench.processes import descriptors, resident_mib
from support.fake_core import completion
from support.http_client import Server
from support.waiting import PATIENCE_S, until

TOKENS = 60


class Bystanders:
    """Streams of other clients, each in a thread; they must not notice anything."""

    def __init__(self, server: Server, prompts: list[str], tokens: int) -> None:
        self._server = server
        self._prompts = prompts
        self._tokens = tokens
        self._bodies: dict[str, bytes] = {}
        self._begun = threading.Barrier(len(prompts) + 1, timeout=PATIENCE_S)
        self._threads = [threading.Thread(target=self._read, args=(p,)) for p in prompts]

    def _read(self, prompt: str) -> None:
        body = {"model": "fake", "prompt": prompt, "max_tokens": self._tokens, "stream": True}
        with self._server.http.stream("POST", "/v1/completions", json=body) as response:
            parts = response.iter_bytes()
            received = next(parts)
            self._begun.wait()
            self._bodies[prompt] = received + b"".join(parts)

    def start(self) -> None:
        """Returns when every stream has begun."""
        for thread in self._threads:
            thread.start()
        self._begun.wait()

    def check(self) -> None:
        """Wait for all, and compare what each was sent with what it is due, byte by byte."""
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a stream hangs"
        for prompt in self._prompts:
            assert written(self._bodies[prompt]) == (expected(prompt, self._tokens), "length")
            assert self._bodies[prompt].endswith(b"data: [DONE]\n\n")


@contextmanager
def bystanders(server: Server, count: int = 3, tokens: int = TOKENS) -> Iterator[None]:
    """Streams that have begun when this is entered, and are checked when it is left."""
    streams = Bystanders(server, [f"bystander {i}" for i in range(count)], tokens)
    streams.start()
    yield
    streams.check()


def raw(server: Server) -> socket.socket:
    """A connection, for what no HTTP client sends or does."""
    return socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), PATIENCE_S)


def posted(body: dict[str, object], path: str = "/v1/completions", key: str = "none") -> bytes:
    data = json.dumps(body).encode()
    return (
        b"POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
        % (path.encode(), key.encode(), len(data), data)
    )


def expected(prompt: str, tokens: int) -> str:
    return bytes(completion(list(prompt.encode()), tokens)).decode()


def written(body: bytes) -> tuple[str, str | None]:
    """The text of a stream of completions, and its finish reason."""
    text, reason = "", None
    for line in body.decode().splitlines():
        if line.startswith("data: {") and "error" not in json.loads(line[6:]):
            (choice,) = json.loads(line[6:])["choices"]
            text += choice["text"]
            reason = choice["finish_reason"] or reason
    return text, reason


@contextmanager
def nothing_left(server: Server, mib: float = 16) -> Iterator[None]:
    """Afterwards the engine runs nothing, its books agree, and files and memory are back."""
    pids = server.process.pid, server.engine_pid
    server.metric("engine_up")  # open the connection that later questions use
    before = [descriptors(pid) for pid in pids]
    memory = [resident_mib(pid) for pid in pids]
    yield
    until(lambda: not server.metric("num_requests_running"), PATIENCE_S, "the engine is idle")
    assert server.admin("check", {}).json() == {"ok": True}
    assert server.status()["engine"]["open_sequences"] == 0
    assert server.status()["requests"] == []
    for i, pid in enumerate(pids):
        # A client's pool may keep connections open.
        until(lambda: descriptors(pid) <= before[i] + 4, PATIENCE_S, "files are closed")  # noqa: B023
        assert resident_mib(pid) < memory[i] + mib
