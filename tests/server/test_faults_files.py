"""A server that has as many files open as it may."""

from __future__ import annotations

import resource
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from support.http_client import Server, running
from support.streams import bystanders, raw
from support.waiting import PATIENCE_S, until

from penstock.bench.processes import cpu_seconds, descriptors

FILES = 64


def fresh(server: Server) -> httpx.Client:
    """A client that has no connection yet."""
    return httpx.Client(base_url=server.url, verify=False, timeout=PATIENCE_S)


def fill(server: Server, held: ExitStack) -> None:
    """Take every place with connections that ask nothing."""
    while True:
        sock = held.enter_context(raw(server))
        sock.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        if sock.recv(12) != b"HTTP/1.1 200":
            return


def test_connections_beyond_the_limit_are_refused_with_reasons(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with (
        log.open("wb") as stderr,
        running(tokenizer_folder, 10, stderr, files=FILES) as server,
        bystanders(server, tokens=200),
    ):
        with ExitStack() as held:
            assert server.ready()  # a connection for later
            fill(server, held)
            for _ in range(20):
                with fresh(server) as client:
                    answer = client.get("/v1/models")
                    assert answer.status_code == 503
                    assert answer.json()["error"]["code"] == "too_many_connections"
                    assert answer.headers["connection"] == "close"
                    assert int(answer.headers["retry-after"]) > 0
                with fresh(server) as client:
                    assert client.get("/health").status_code == 200
            assert server.ready()
            assert descriptors(server.process.pid) < FILES - 4
        until(lambda: descriptors(server.process.pid) < FILES - 20, PATIENCE_S, "closed")
        with fresh(server) as client:
            assert client.get("/ready").status_code == 200
    lines = [line for line in log.read_text().splitlines() if "penstock.access" not in line]
    assert len([line for line in lines if f"may have {FILES} files open" in line]) == 1
    assert len(lines) < 10


@pytest.mark.slow
def test_silent_connections_beyond_the_limit_wait_their_turn(tokenizer_folder: Path) -> None:
    with running(tokenizer_folder, 10, files=FILES) as server, bystanders(server, tokens=200):
        with ExitStack() as held:
            assert server.ready()  # a connection for later
            for _ in range(3 * FILES):
                held.enter_context(raw(server))
            until(lambda: descriptors(server.process.pid) > FILES // 2, PATIENCE_S, "full")
            assert server.ready()
            assert descriptors(server.process.pid) < FILES - 4
        with fresh(server) as client:
            until(lambda: client.get("/ready").status_code == 200, PATIENCE_S, "room")


@pytest.mark.slow
def test_a_process_without_descriptors_is_calm_and_recovers(
    tokenizer_folder: Path, tmp_path: Path
) -> None:
    """The limit is lowered under what is open: nothing can be accepted, whatever was reckoned."""
    log = tmp_path / "log"
    with log.open("wb") as stderr, running(tokenizer_folder, 10, stderr) as server:
        pid = server.process.pid
        assert server.ready()
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (5, before[1]))
        with ExitStack() as held, bystanders_on_one(server):
            waiting = [held.enter_context(raw(server)) for _ in range(50)]
            until(lambda: "no connection can be accepted" in log.read_text(), PATIENCE_S, "told")
            spent = cpu_seconds(pid)
            time.sleep(3)
            assert cpu_seconds(pid) - spent < 1.5  # it does not spin
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            for sock in waiting:
                sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            for sock in waiting:
                assert sock.recv(12) == b"HTTP/1.1 200"
    assert log.read_text().count("no connection can be accepted (Too many open files)") == 1


def bystanders_on_one(server: Server) -> ExitStack:
    """A stream on a connection that was there before."""
    held = ExitStack()
    body = {"model": "fake", "prompt": "abc", "max_tokens": 50, "stream": True}
    response = held.enter_context(server.http.stream("POST", "/v1/completions", json=body))
    held.callback(lambda: assert_whole(response))
    return held


def assert_whole(response: httpx.Response) -> None:
    assert response.read().endswith(b"data: [DONE]\n\n")
