"""GET /engine/events: what the engine does, for whoever watches."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from support.http_client import Server, running
from support.json_schema import fault
from support.streams import bystanders
from support.waiting import PATIENCE_S, until

from penstock.interface.messages import EngineStats
from penstock.server import engine_events
from penstock.server.engine_events import EngineEvents
from penstock.server.metrics import Counts
from penstock.server.open_requests import OpenRequests


@contextmanager
def watching(server: Server) -> Iterator[Iterator[dict[str, Any]]]:
    with (
        httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client,
        client.stream("GET", "/engine/events") as response,
    ):
        assert response.status_code == 200
        yield snapshots(response)


def snapshots(response: httpx.Response) -> Iterator[dict[str, Any]]:
    deadline = time.monotonic() + PATIENCE_S
    for line in response.iter_lines():
        assert time.monotonic() < deadline, "the stream does not say what is waited for"
        if line:
            yield json.loads(line.removeprefix("data: "))


def first(server: Server) -> dict[str, Any]:
    with watching(server) as events:
        return next(events)


def test_snapshots_are_as_the_document_describes(server: Server) -> None:
    document = server.http.get("/openapi.json").json()
    operation = document["paths"]["/engine/events"]["get"]
    (content,) = operation["responses"]["200"]["content"].items()
    kind, described = content
    schema = described["schema"]["properties"]["data"]["contentSchema"]
    snapshot = first(server)
    assert kind == "text/event-stream"
    assert fault(snapshot, schema, document) is None
    assert snapshot["model"] == "fake"
    assert snapshot["trouble"] is None


def test_totals_grow_by_what_is_served(fresh_server: Server) -> None:
    server = fresh_server
    with watching(server) as events:
        before = next(events)
        body = {"model": "fake", "prompt": "a" * 40, "max_tokens": 7}
        assert server.post("/v1/completions", body).status_code == 200
        after = next(e for e in events if e["engine"]["generated_tokens"] > 1)
        while after["engine"]["running"]:
            after = next(events)
    steps = after["engine"]["steps"]
    assert after["engine"]["generated_tokens"] - before["engine"]["generated_tokens"] == 7
    computed = steps["prefill_tokens"] + steps["decode_tokens"] + steps["draft_tokens"]
    assert computed == 1 + 1 + 40 + 7  # with the warm-up's
    assert sum(after["first_token_seconds"]["counts"]) == 1
    assert sum(after["inter_token_seconds"]["counts"]) == 6
    assert after["time"] > before["time"]
    assert after["engine"]["drafts"] is None


def test_several_watch(fresh_server: Server) -> None:
    """All get the same samples, also those who come as the last one leaves."""
    server = fresh_server
    with watching(server) as one, watching(server) as other:
        next(one)
        newest = [next(one)["time"] for _ in range(3)]
        assert set(newest) & {next(other)["time"] for _ in range(6)}
        assert min(b - a for a, b in pairwise(newest)) >= 0.24
    assert server.ready()
    for _ in range(3):
        with watching(server) as events:
            assert next(events)["time"] < next(events)["time"]


def test_a_watcher_that_reads_nothing_holds_nobody(fresh_server: Server) -> None:
    address = fresh_server.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1]))) as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        idle.sendall(b"GET /engine/events HTTP/1.1\r\nhost: x\r\n\r\n")
        with watching(fresh_server) as events:
            times = [next(events)["time"] for _ in range(4)]
    assert times == sorted(set(times))
    assert fresh_server.ready()


def test_a_dead_engine_is_told_of_and_the_stream_goes_on(tokenizer_folder: Path) -> None:
    # It stays dead for some samples.
    with running(tokenizer_folder, 10, backoff_s=3) as server, watching(server) as events:
        assert next(events)["engine"] is not None
        os.kill(server.engine_pid, signal.SIGKILL)
        dead = next(e for e in events if e["trouble"])
        assert dead["engine"] is None
        assert "restarted" in dead["trouble"]
        back = next(e for e in events if e["engine"])
        assert back["trouble"] is None


class Silent:
    """The part of a supervisor that is watched, of an engine that is in one step."""

    trouble = None

    def __init__(self) -> None:
        self.asked = 0
        self.llm = SimpleNamespace(process=SimpleNamespace(step_s=3.5))

    async def stats(self) -> EngineStats:
        self.asked += 1
        await asyncio.Event().wait()
        raise AssertionError


class Answering(Silent):
    """One that answers at once."""

    async def stats(self) -> EngineStats:
        self.asked += 1
        counts = dict.fromkeys(EngineStats.__struct_fields__[:10], 0)
        return EngineStats(**counts)


def test_without_watchers_the_engine_is_asked_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_events, "SAMPLE_S", 0.001)

    async def watch() -> None:
        engine: Any = Answering()
        watched = EngineEvents(engine, OpenRequests(), Counts(), "m")
        await asyncio.sleep(0.02)
        assert engine.asked == 0
        async with aclosing(watched.events()) as one, aclosing(watched.events()) as other:
            for events in (one, other, one, other):
                await anext(events)
        asked = engine.asked
        assert asked >= 2
        await asyncio.sleep(0.02)
        assert engine.asked == asked

    asyncio.run(watch())


def test_a_silent_engine_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_events, "SAMPLE_S", 0.001)
    monkeypatch.setattr(engine_events, "PATIENCE_S", 0.001)

    async def watch() -> list[dict[str, Any]]:
        engine: Any = Silent()
        watched = EngineEvents(engine, OpenRequests(), Counts(), "m")
        async with aclosing(watched.events()) as events:
            found = [await anext(events) for _ in range(3)]
        assert engine.asked == 1
        return [json.loads(each.removeprefix(b"data: ")) for each in found]

    for each in asyncio.run(watch()):
        assert (each["engine"], each["trouble"], each["step_seconds"]) == (None, None, 3.5)


@pytest.mark.slow
def test_an_engine_in_a_long_step_is_told_of(tokenizer_folder: Path) -> None:
    with running(tokenizer_folder, 1300) as server, watching(server) as events:
        next(events)
        with bystanders(server, count=1, tokens=2):
            busy = next(e for e in events if e["engine"] is None)
            assert busy["trouble"] is None
            assert next(e for e in events if e["engine"])["engine"]["running"] == 1


def test_a_stop_waits_for_no_watcher(tokenizer_folder: Path) -> None:
    grace = 2 * PATIENCE_S
    with running(tokenizer_folder, 1, grace_s=grace) as server, watching(server) as events:
        next(events)
        server.process.send_signal(signal.SIGTERM)
        left = list(events)  # the stream ends, before its patience does
        assert not left or left[-1]["trouble"]
        server.process.wait(PATIENCE_S)


def test_watchers_are_no_requests(server: Server) -> None:
    with watching(server) as events:
        next(events)
        until(lambda: server.metric("http_requests_open") == 0, PATIENCE_S, "none is open")
