"""How long a plain request takes beside others that ask for much: of grammars, or of tokens."""

from __future__ import annotations

import json
import socket
import statistics
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from service.asking import SMALL_BUFFER
from service.process import HOST, Served, serving

CROWD, PLAIN = "crowd-key", "plain-key"
AMBIGUOUS = "start: e\ne: e e | /[a-z ]/"
"""A grammar by which a text can be read in a number of ways that grows exponentially with its
length."""
GRAMMARS = 16
CLIENTS, SEQUENCES, OUTPUT = 20, 8, 1800
PLAIN_TOKENS = 16
WARM_UP_S = 3.0
TIMEOUT_S = 300.0


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of plain requests, one after the other."""

    requests: int
    median_s: float
    worst_s: float


class Neighbours(msgspec.Struct, frozen=True, kw_only=True):
    alone: Latency
    beside_grammars: Latency
    """16 requests with an ambiguous grammar, each asked again when it has ended."""
    beside_crowd: Latency
    """20 clients of another key that never read, each with 8 long sequences."""


def measure(seconds: float, threads: int) -> Neighbours:
    flags = ["--threads", str(threads), "--no-access-log"]
    with serving(flags, keys=(CROWD, PLAIN)) as server:
        _plain(server)
        alone = _timed(server, seconds)
        with _grammars(server):
            time.sleep(WARM_UP_S)
            grammars = _timed(server, seconds)
        with _crowd(server):
            crowd = _timed(server, seconds)
    return Neighbours(alone=alone, beside_grammars=grammars, beside_crowd=crowd)


def _timed(server: Served, seconds: float) -> Latency:
    """Latencies of requests sent one after another for ``seconds``, three at least."""
    times: list[float] = []
    end = time.monotonic() + seconds
    while len(times) < 3 or time.monotonic() < end:
        began = time.monotonic()
        _plain(server)
        times.append(time.monotonic() - began)
    return Latency(requests=len(times), median_s=statistics.median(times), worst_s=max(times))


def _plain(server: Served) -> None:
    body = {"model": server.model, "prompt": "def f(", "max_tokens": PLAIN_TOKENS}
    _ask(server, PLAIN, {**body, "ignore_eos": True})


def _ask(server: Served, key: str, body: dict[str, object]) -> bytes:
    request = urllib.request.Request(
        f"http://{HOST}:{server.port}/v1/completions",
        json.dumps(body).encode(),
        {"authorization": f"Bearer {key}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        data: bytes = answer.read()
        return data


@contextmanager
def _grammars(server: Served) -> Iterator[None]:
    stop = threading.Event()

    def one(seed: int) -> None:
        while not stop.is_set():
            seed += GRAMMARS
            body: dict[str, object] = {"model": server.model, "prompt": "a", "max_tokens": 200}
            body |= {"seed": seed, "guided_grammar": AMBIGUOUS, "temperature": 1.5}
            try:
                _ask(server, CROWD, body)
            except urllib.error.HTTPError as error:  # it has come to its bound
                error.close()

    with _running(one, GRAMMARS):
        try:
            yield
        finally:
            stop.set()


@contextmanager
def _running(work: Callable[[int], None], count: int) -> Iterator[None]:
    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(count)]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        for each in threads:
            each.join(TIMEOUT_S)


@contextmanager
def _crowd(server: Served) -> Iterator[None]:
    sockets = []
    for i in range(CLIENTS):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        sock.connect((HOST, server.port))
        body = {"model": server.model, "prompt": f"x{i} = ", "max_tokens": OUTPUT, "n": SEQUENCES}
        data = json.dumps({**body, "stream": True, "ignore_eos": True, "seed": i}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {CROWD}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        sock.sendall(head.encode() + data)
        sockets.append(sock)
    time.sleep(WARM_UP_S)
    try:
        yield
    finally:
        for sock in sockets:
            sock.close()
