"""What is found in the caches of several servers, by who chooses among them; beside one big cache.

A trace of Mooncake's names the blocks of prompts. Each block becomes as many random tokens as a
block of the cache has, prompts are cut to what the model takes, and clients ask one after the other
in the order of the trace, as fast as they are answered.
"""

from __future__ import annotations

import http.client
import os
import random
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import msgspec

from penstock.bench.traces import HashedRequest
from service.affinity import PrefixAffinity
from service.fleets import routing
from service.process import ANSWER_S, HOST, Served, serving

BLOCK = 32
"""Tokens of a block of the cache."""
CONTEXT_BLOCKS, OUTPUT_TOKENS = 60, 96
"""The longest prompt and answer: together what the demo model's context holds."""
SHRINK = 16
"""Blocks of 512 tokens become blocks of 32, and answers are as much shorter."""
_TOKENS = range(10, 200)
_FOLLOWED_S = 60.0


class Options(msgspec.Struct, frozen=True):
    trace: str
    requests: int
    servers: int
    clients: int
    cache_mib: int
    """The cache of each server; the big one has that of all."""
    threads: int


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What one way of choosing came to."""

    by: str
    prompt_tokens: int
    found_tokens: int
    foretold: float | None
    """Tokens that the router expected to be found, over those that were."""
    hit_rate: float
    of_one_cache: float
    """Its hit rate over that of one big cache."""
    most_computed: float
    """Prompt tokens that the server computed which computed most, over the mean."""
    ttft_mean_s: float
    seconds: float


class Caches(msgspec.Struct, frozen=True):
    options: Options
    found: list[Found]


@dataclass(frozen=True)
class Asked:
    text: Sequence[int]
    """Numbers of blocks, equal where blocks are."""
    prompt: Sequence[int]
    output: int


class Way(Protocol):
    """A way to one of the servers."""

    def begin(self, text: Sequence[int]) -> int:
        """The port that is asked."""

    def end(self, port: int) -> None:
        """Note that an answer of a port has come."""


class Straight:
    """All requests go to one port."""

    def __init__(self, port: int) -> None:
        self._port = port

    def begin(self, text: Sequence[int]) -> int:
        return self._port

    def end(self, port: int) -> None:
        pass


class ByAffinity:
    """As :class:`PrefixAffinity` chooses."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = list(ports)
        self._policy = PrefixAffinity(len(ports))

    def begin(self, text: Sequence[int]) -> int:
        return self._ports[self._policy.begin(text)]

    def end(self, port: int) -> None:
        self._policy.end(self._ports.index(port))


def requests_of(trace: Sequence[HashedRequest]) -> Iterator[Asked]:
    """The requests of a trace, shrunk."""
    for request in trace:
        text = request.hash_ids[: min(request.input_length // request.block, CONTEXT_BLOCKS)]
        prompt = [token for number in text for token in _tokens(number)]
        # What is no whole block is nobody else's.
        prompt += _tokens(-1 - len(prompt))[: 1 + request.input_length % request.block // SHRINK]
        output = min(max(request.output_length // SHRINK, 1), OUTPUT_TOKENS)
        yield Asked(text, prompt, output)


def _tokens(number: int) -> list[int]:
    return random.Random(number).choices(_TOKENS, k=BLOCK)


class Replay:
    """Clients that send all requests one way, and what they are told."""

    def __init__(self, requests: Sequence[Asked], way: Way, model: str) -> None:
        self._left = iter(requests)
        self._way = way
        self._model = model
        self._lock = threading.Lock()
        self.prompt = self.found = 0
        self.waits: list[float] = []
        self._troubles: list[Exception] = []

    def run(self, clients: int) -> None:
        """Send all. Raises what kept a client from its answer."""
        threads = [threading.Thread(target=self._ask_all) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._troubles:
            raise self._troubles[0]

    def _ask_all(self) -> None:
        while not self._troubles:
            with self._lock:
                asked = next(self._left, None)
                if asked is None:
                    return
                port = self._way.begin(asked.text)
            try:
                prompt, found, wait = self._ask(port, asked)
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                self._troubles.append(error)
                return
            with self._lock:
                self._way.end(port)
                self.prompt += prompt
                self.found += found
                self.waits.append(wait)

    def _ask(self, port: int, asked: Asked) -> tuple[int, int, float]:
        """Prompt tokens, those found, and seconds to the first token."""
        body = {
            "model": self._model,
            "prompt": asked.prompt,
            "max_tokens": asked.output,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_S)
        began, wait = time.monotonic(), 0.0
        try:
            headers = {"content-type": "application/json"}
            connection.request("POST", "/v1/completions", msgspec.json.encode(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                raise ValueError(f"status {response.status}: {response.read()[:500]!r}")
            last = b""
            for line in response:
                wait = wait or time.monotonic() - began
                if line.startswith(b"data: {"):
                    last = line.removeprefix(b"data: ")
            usage = msgspec.json.decode(last)["usage"]
        finally:
            connection.close()
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], wait


def measure(options: Options, trace: Sequence[HashedRequest], routes: Sequence[str]) -> Caches:
    """``routes``: options of ``penstock route``, a text for each run. Raises RuntimeError where a
    server or a router does not start."""
    requests = list(islice(requests_of(trace), options.requests))
    found: list[Found] = []
    with serving(_words(options, options.servers)) as big:
        found.append(_measured("one cache", requests, [big], Straight(big.port), options))
    with ExitStack() as stack:
        words = _words(options)
        servers = [stack.enter_context(serving(words)) for _ in range(options.servers)]
        urls = [f"http://{HOST}:{server.port}" for server in servers]
        one = found[0].hit_rate
        for route in routes:
            with routing(urls, route.split()) as url:
                _wait_until_followed(url, len(servers))
                way = Straight(int(url.rpartition(":")[2]))
                name = f"penstock route {route}"
                measured = _measured(name, requests, servers, way, options, one)
                expected = sum(each["prompt_tokens_cached"] for each in _replicas(url))
            foretold = round(expected / max(measured.found_tokens, 1), 4)
            found.append(msgspec.structs.replace(measured, foretold=foretold))
            _clear(servers)
        affinity = ByAffinity([server.port for server in servers])
        found.append(_measured("prefix affinity", requests, servers, affinity, options, one))
    return Caches(options, found)


def _words(options: Options, times: int = 1) -> list[str]:
    """The options of a server that is as large as so many."""
    threads = min(options.threads * times, os.cpu_count() or 1)
    cache = f"{options.cache_mib * times}MiB"
    return ["--threads", str(threads), "--kv-cache-bytes", cache, "--no-access-log"]


def _measured(
    by: str,
    requests: Sequence[Asked],
    servers: Sequence[Served],
    way: Way,
    options: Options,
    one: float | None = None,
) -> Found:
    before = [_computed(server) for server in servers]
    began = time.monotonic()
    replay = Replay(requests, way, servers[0].model)
    replay.run(options.clients)
    seconds = time.monotonic() - began
    computed = [_computed(server) - was for server, was in zip(servers, before, strict=True)]
    rate = replay.found / replay.prompt
    found = Found(
        by=by,
        prompt_tokens=replay.prompt,
        found_tokens=replay.found,
        foretold=None,
        hit_rate=round(rate, 4),
        of_one_cache=round(rate / one, 4) if one else 1.0,
        most_computed=round(max(computed) * len(computed) / max(sum(computed), 1), 3),
        ttft_mean_s=round(sum(replay.waits) / len(replay.waits), 4),
        seconds=round(seconds, 1),
    )
    print(found, file=sys.stderr)
    return found


def _computed(server: Served) -> float:
    """Prompt tokens that a server has computed so far."""
    return server.metric("prompt_tokens_total") - server.metric("prompt_tokens_cached_total")


def _clear(servers: Sequence[Served]) -> None:
    for server in servers:
        server.post("/admin/cache/clear", {})


def _replicas(url: str) -> list[dict[str, Any]]:
    """What a router tells of each of its servers."""
    with urllib.request.urlopen(f"{url}/fleet/status", timeout=ANSWER_S) as answer:
        found: list[dict[str, Any]] = msgspec.json.decode(answer.read())["replicas"]
    return found


def _wait_until_followed(url: str, servers: int) -> None:
    """Wait until a router knows what all caches hold. Raises RuntimeError where it does not."""
    until = time.monotonic() + _FOLLOWED_S
    while time.monotonic() < until:
        if sum(each["cache_followed"] for each in _replicas(url)) == servers:
            return
        time.sleep(0.1)
    raise RuntimeError("the router does not learn what the caches hold")
