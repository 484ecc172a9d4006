"""A server that is asked to stop, or to take no more work for a while."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest
from support.http_client import Server, running
from support.streams import bystanders, expected, written
from support.waiting import PATIENCE_S, until

BODY = {"model": "fake", "prompt": "abc", "max_tokens": 400}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_open_requests_finish(tokenizer_folder: Path, number: int) -> None:
    with running(tokenizer_folder, 10, grace_s=20) as server:
        with bystanders(server, tokens=200):
            server.process.send_signal(number)
            until(lambda: not server.ready(), PATIENCE_S, "not ready")
            assert server.http.get("/health").status_code == 200
            refused = server.post("/v1/completions", BODY)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "draining"
            assert "retry-after" in refused.headers
        assert server.process.wait(PATIENCE_S) == 0
        with pytest.raises(httpx.ConnectError):
            server.http.get("/health")


def test_the_grace_after_a_signal_ends_and_is_reported(fresh_server: Server) -> None:
    whole: list[httpx.Response] = []
    other = threading.Thread(
        target=lambda: whole.append(fresh_server.post("/v1/completions", BODY))
    )
    other.start()
    with fresh_server.http.stream(
        "POST", "/v1/completions", json={**BODY, "stream": True}
    ) as response:
        parts = response.iter_bytes()
        first = next(parts)
        began = time.monotonic()
        fresh_server.process.send_signal(signal.SIGTERM)
        body = first + b"".join(parts)
    other.join()
    text, reason = written(body)
    assert reason is None
    assert text == expected("abc", 400)[: len(text)]
    last = json.loads(body.strip().splitlines()[-1][6:])
    assert last["error"]["code"] == "shutting_down"
    assert whole[0].status_code == 503
    assert fresh_server.process.wait(PATIENCE_S) == 0
    assert time.monotonic() - began > 0.9  # the grace is 1 s
    assert len(text) < 400


def test_a_second_signal_ends_the_server_at_once(tokenizer_folder: Path) -> None:
    with (
        running(tokenizer_folder, 10, grace_s=60) as server,
        server.http.stream("POST", "/v1/completions", json={**BODY, "stream": True}) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: not server.ready(), PATIENCE_S, "not ready")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 128 + signal.SIGTERM


def test_drain_and_resume(fresh_server: Server) -> None:
    with bystanders(fresh_server, tokens=200):
        assert fresh_server.admin("drain", {}).json()["open"] == 3
        assert not fresh_server.ready()
        assert fresh_server.post("/v1/completions", BODY).status_code == 503
        assert fresh_server.admin("resume", {}).json() == {"draining": False, "open": 3}
        assert fresh_server.ready()
        short = fresh_server.post("/v1/completions", {**BODY, "max_tokens": 5})
        assert short.json()["choices"][0]["text"] == expected("abc", 5)
