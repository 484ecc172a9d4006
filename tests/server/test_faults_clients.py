"""Clients that leave, stall, ask too much, or ask badly, beside others who notice nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from pathlib import Path

import httpx
import pytest
from support.http_client import Server, running
from support.http_server import ADMIN_KEY
from support.streams import bystanders, expected, nothing_left, posted, raw
from support.waiting import PATIENCE_S, until

from penstock.bench.processes import resident_mib

pytestmark = pytest.mark.slow

BODY = {"model": "fake", "prompt": "abc", "max_tokens": 400}
STREAM = {**BODY, "stream": True}


def test_many_clients_leave_in_prefill_and_decode(slow_server: Server) -> None:
    """300, in waves."""
    with nothing_left(slow_server), bystanders(slow_server, tokens=200):
        for wave in range(6):
            sockets = [raw(slow_server) for _ in range(50)]
            for sock in sockets:
                sock.sendall(posted(STREAM))
            if wave % 2:  # otherwise they leave before the first token
                for sock in sockets:
                    sock.recv(100)
            for sock in sockets:
                sock.close()


@pytest.mark.slow
def test_a_thousand_clients_leave(slow_server: Server) -> None:
    with nothing_left(slow_server), bystanders(slow_server, tokens=400):
        for wave in range(20):
            sockets = [raw(slow_server) for _ in range(50)]
            for sock in sockets:
                sock.sendall(posted({**STREAM, "n": 1 + wave % 3}))
            for sock in sockets[:: 1 + wave % 2]:
                sock.recv(100)
            for sock in sockets:
                sock.close()


def test_a_client_that_leaves_frees_its_place_within_two_steps(tokenizer_folder: Path) -> None:
    with running(tokenizer_folder, 300) as server:
        before = server.metric("engine_steps_total")
        with server.http.stream("POST", "/v1/completions", json=STREAM) as response:
            lines = (line for line in response.iter_lines() if line)
            for _ in range(3):
                next(lines)
        until(lambda: not server.metric("num_requests_running"), PATIENCE_S, "gone")
        assert server.metric("engine_steps_total") - before <= 3 + 2


def test_an_abort_storm_touches_nobody_else(tokenizer_folder: Path) -> None:
    async def storm(server: Server) -> None:
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(
            base_url=server.url, verify=False, limits=limits, timeout=PATIENCE_S
        ) as client:

            async def one(i: int) -> None:
                headers = {"x-request-id": f"storm-{i}"}
                response = await client.post("/v1/completions", json=BODY, headers=headers)
                assert response.status_code == 500
                assert response.json()["error"]["code"] == "aborted"
                assert response.headers["x-should-retry"] == "false"
                assert response.headers["x-request-id"] == f"storm-{i}"

            tasks = [asyncio.ensure_future(one(i)) for i in range(50)]
            left = set(range(50))
            while left:
                for i in list(left):
                    answer = await asyncio.to_thread(
                        server.admin, "abort", {"request_id": f"storm-{i}"}
                    )
                    if answer.json()["aborted"]:
                        left.remove(i)
            await asyncio.gather(*tasks)

    # A request takes 24 s of steps: each is still there to be aborted.
    with (
        running(tokenizer_folder, 60) as server,
        nothing_left(server),
        bystanders(server, tokens=30),
    ):
        asyncio.run(storm(server))


def test_an_abort_by_the_answers_id_ends_it_as_aborted(slow_server: Server) -> None:
    with slow_server.http.stream("POST", "/v1/completions", json=STREAM) as response:
        lines = (line for line in response.iter_lines() if line.startswith("data: {"))
        name = json.loads(next(lines)[6:])["id"]
        assert slow_server.admin("abort", {"request_id": name}).json() == {"aborted": 1}
        *_, last = lines
    assert json.loads(last[6:])["choices"][0]["finish_reason"] == "abort"


def test_requests_of_one_id_do_not_disturb_each_other(slow_server: Server) -> None:
    headers = {"x-request-id": "twice"}
    body = {**STREAM, "max_tokens": 50}
    with slow_server.http.stream("POST", "/v1/completions", json=body, headers=headers) as first:
        assert first.headers["x-request-id"] == "twice"
        second = slow_server.http.post(
            "/v1/completions", json={**BODY, "prompt": "x", "max_tokens": 20}, headers=headers
        )
        assert second.headers["x-request-id"] == "twice"
        assert second.json()["choices"][0]["text"] == expected("x", 20)
        assert b"[DONE]" in first.read()


@pytest.mark.parametrize("name", ["", "a b", "é", "x" * 129])
def test_a_request_id_that_is_none_is_replaced(server: Server, name: str) -> None:
    headers = {"x-request-id": name.encode("latin-1")}
    response = server.http.get("/v1/models", headers=headers)
    assert response.headers["x-request-id"].startswith("req-")


def test_a_deadline_ends_a_request_and_no_other(slow_server: Server) -> None:
    headers = {"x-request-timeout": "1.5"}  # of the 4 s that it takes
    with nothing_left(slow_server), bystanders(slow_server):
        whole = slow_server.http.post("/v1/completions", json=BODY, headers=headers)
        assert whole.status_code == 504
        assert whole.json()["error"]["code"] == "deadline_exceeded"
        assert whole.headers["x-should-retry"] == "false"
        with slow_server.http.stream(
            "POST", "/v1/completions", json=STREAM, headers=headers
        ) as response:
            assert response.status_code == 200
            lines = [line for line in response.iter_lines() if line]
        assert json.loads(lines[-1][6:])["error"]["code"] == "deadline_exceeded"
        assert len(lines) > 1


@pytest.mark.parametrize("text", ["0", "0.0", "-1", "nan", "inf", "1_0", "1e3", "soon", ""])
def test_a_deadline_that_is_no_number_is_refused(server: Server, text: str) -> None:
    response = server.http.post("/v1/completions", json=BODY, headers={"x-request-timeout": text})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x-request-timeout"


def test_the_servers_own_deadline_cannot_be_extended(tokenizer_folder: Path) -> None:
    with running(tokenizer_folder, 10, request_timeout_s=0.3) as server:
        for headers in ({}, {"x-request-timeout": "100"}):
            response = server.http.post("/v1/completions", json=BODY, headers=headers)
            assert response.status_code == 504


def test_a_full_queue_refuses_and_recovers(tokenizer_folder: Path) -> None:
    with (
        running(tokenizer_folder, 10, max_waiting=4) as server,
        nothing_left(server),
    ):
        room = server.status()["engine"]["max_sequences"]
        assert room == 256 + 4
        two = {**STREAM, "n": 128, "prompt": ["a", "b"]}
        with server.http.stream("POST", "/v1/completions", json=two) as response:
            lines = response.iter_lines()  # once this is collected, the stream is closed
            next(lines)
            more = server.post("/v1/completions", {**BODY, "n": 5})
            assert more.status_code == 429
            assert more.json()["error"]["code"] == "queue_full"
            assert 1 <= int(more.headers["retry-after"]) <= 60
            fits = server.post("/v1/completions", {**BODY, "n": 2, "max_tokens": 1})
            assert fits.status_code == 200
            with server.http.stream("POST", "/v1/completions", json={**STREAM, "n": 4}) as last:
                others = last.iter_lines()
                next(others)
                before = server.post("/v1/completions", b"not even read")
                assert before.status_code == 429
        until(lambda: server.status()["engine"]["open_sequences"] == 0, PATIENCE_S, "room")
        again = server.post("/v1/completions", {**BODY, "n": 5, "max_tokens": 1})
        assert again.status_code == 200
        assert server.metric("request_queue_full_total") == 2


def test_a_reader_that_stalls_is_dropped_and_holds_nobody_up(tokenizer_folder: Path) -> None:
    # Many sequences with log-probabilities: more than all buffers on the way take.
    much = {**STREAM, "n": 64, "logprobs": 5}
    with running(tokenizer_folder, 1, stall_s=1) as server, socket.socket() as sock:
        server.post("/v1/completions", much)  # memory that an allocator keeps for the next one
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        with nothing_left(server), bystanders(server):
            sock.sendall(posted(much))
            until(lambda: server.status()["engine"]["open_sequences"] >= 64, PATIENCE_S, "begun")
            until(lambda: not server.status()["requests"], PATIENCE_S, "dropped")


def test_slow_heads_and_bodies_are_given_up(tokenizer_folder: Path) -> None:
    with (
        running(tokenizer_folder, 5, headers_timeout_s=2, body_timeout_s=2) as server,
        nothing_left(server),
        bystanders(server),
    ):
        silent, head, body, admins = (raw(server) for _ in range(4))
        head.sendall(b"GET /health HTTP/1.1\r\nHo")
        body.sendall(posted(BODY)[:-5])
        admins.sendall(posted({"all": True}, "/admin/abort", ADMIN_KEY)[:-5])
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):  # given up already, where sleeps take longer
            while time.monotonic() - began < 1.5:
                head.sendall(b"x")  # a trickle does not help
                time.sleep(0.1)
        assert silent.recv(100) == b""
        try:
            reported = head.recv(100)
        except ConnectionResetError:  # what it trickled last was never read
            reported = b""
        assert reported == b""
        for each in (body, admins):
            answer = b"".join(iter(lambda each=each: each.recv(4096), b""))
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"body_timeout" in answer
        for sock in (silent, head, body, admins):
            sock.close()


def test_a_giant_head_is_refused(slow_server: Server) -> None:
    with nothing_left(slow_server), bystanders(slow_server), raw(slow_server) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nx-big: " + b"y" * 65_000)
        time.sleep(0.1)
        sock.sendall(b"y" * 1000)
        assert sock.recv(1000).startswith(b"HTTP/1.1 431 ")
        assert sock.recv(1000)[-1:] in (b"", b"}")


def test_clients_that_ask_and_never_read_cost_little(tokenizer_folder: Path) -> None:
    """What is asked ahead waits in the kernel, not in answers that nobody takes."""
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 2000
    with running(tokenizer_folder, 10) as server, bystanders(server, tokens=200):
        size = len(server.http.get("/openapi.json").content)
        before = resident_mib(server.process.pid)
        with contextlib.ExitStack() as held:
            for _ in range(20):
                sock = held.enter_context(socket.socket())
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                sock.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
                sock.setblocking(False)
                sock.send(asked)
            time.sleep(1)
            assert server.ready()
            assert resident_mib(server.process.pid) - before < 20 * 2000 * size / 2**20 / 10
