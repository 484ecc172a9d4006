"""A client that leaves, an engine that dies, or a server that ends during a switch."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from support.fake_core import WAIT
from support.http_client import Server, refused, running
from support.streams import expected, posted, raw
from support.switches import (
    BODY,
    CONTEXT,
    LONG,
    Asked,
    complete,
    held,
    pending,
    phase,
    profile,
    stream,
    switch,
    switching,
)
from support.waiting import PATIENCE_S, until


def test_deadlines_hold_and_clients_may_leave(server: Server) -> None:
    with stream(server):
        asked = switching(server, profile(max_num_seqs=5))
        late = Asked(
            lambda: server.http.post(
                "/v1/completions", json=BODY, headers={"x-request-timeout": "0.2"}
            )
        )
        assert refused(late.answer(), 504)["code"] == "deadline_exceeded"
        opened = server.status()["engine"]["open_sequences"]
        with raw(server) as sock:
            sock.sendall(posted({**BODY, "n": 7}))
            held(server, 1)
            assert server.status()["engine"]["open_sequences"] == opened + 7
        held(server, 0)
        assert server.status()["engine"]["open_sequences"] == opened
        staying = complete(server)
        held(server, 1)
        stopped = Asked(
            lambda: server.http.post("/v1/completions", json=BODY, headers={"x-request-id": "me"})
        )
        held(server, 2)
        assert server.admin("abort", {"request_id": "me"}).json() == {"aborted": 1}
        assert refused(stopped.answer(), 500)["code"] == "aborted"
    assert staying.json()["choices"][0]["text"] == expected("abc", 20)
    assert asked.json()["held"] == 4


def test_it_goes_on_when_whoever_asked_for_it_leaves(server: Server, folder: Path) -> None:
    (folder / WAIT).touch()
    body = {"profile": profile("left", max_num_seqs=5), "within_s": 0}
    with raw(server) as sock:
        sock.sendall(posted(body, "/admin/profile", "admin-key"))
        phase(server, "starting")
    (folder / WAIT).unlink()
    until(lambda: pending(server) is None, PATIENCE_S, "it is done")
    assert server.status()["profile"]["made"] == "left"
    assert server.post("/v1/completions", BODY).status_code == 200


def test_an_engine_that_dies_has_the_setup_in_force(server: Server) -> None:
    switch(server, profile(max_model_len=100))
    os.kill(server.status()["engine"]["pid"], signal.SIGKILL)
    until(lambda: server.metric("engine_restarts_total") == 1, PATIENCE_S, "it is back")
    until(server.ready, PATIENCE_S, "ready again")
    assert server.http.get("/v1/models/fake").json()["max_model_len"] == 100
    assert server.status()["profile"]["made"] is not None


def test_an_engine_that_dies_while_a_switch_waits_for_it(server: Server) -> None:
    with server.http.stream("POST", "/v1/completions", json=LONG) as response:
        parts = response.iter_bytes()
        next(parts)
        asked = switching(server, profile(max_model_len=100))
        during = complete(server)
        held(server, 1)
        os.kill(server.engine_pid, signal.SIGKILL)
        assert b"engine_dead" in b"".join(parts)
    assert asked.json()["held"] == 1
    assert during.json()["choices"][0]["text"] == expected("abc", 20)
    assert server.http.get("/v1/models/fake").json()["max_model_len"] == 100


def test_a_next_engine_that_is_killed_while_it_starts(server: Server, folder: Path) -> None:
    (folder / WAIT).touch()
    asked = switching(server, profile(max_num_seqs=5))
    phase(server, "starting")
    during = complete(server)
    held(server, 1)
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")

    def starting() -> list[int]:
        return [
            int(pid)
            for pid in children.read_text().split()
            if b"penstock.engine.ipc.child" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    until(lambda: starting() not in ([], [server.engine_pid]), PATIENCE_S, "the next begins")
    (pid,) = starting()
    os.kill(pid, signal.SIGKILL)
    (folder / WAIT).unlink()
    assert "SIGKILL" in refused(asked.answer(), 422)["message"]
    assert during.json()["choices"][0]["text"] == expected("abc", 20)
    assert server.status()["profile"]["made"] is None


def test_the_end_of_the_server_gives_up_what_is_pending(folder: Path) -> None:
    with running(folder, 10, max_model_len=CONTEXT, grace_s=PATIENCE_S) as server:
        with stream(server):
            asked = switching(server, profile(max_num_seqs=5))
            during = complete(server)
            held(server, 1)
            server.process.send_signal(signal.SIGTERM)
            assert refused(asked.answer(), 503)["code"] == "shutting_down"
            assert during.json()["choices"][0]["text"] == expected("abc", 20)
        assert server.process.wait(PATIENCE_S) == 0


def test_the_end_of_the_server_serves_who_waits_for_an_engine(folder: Path) -> None:
    with running(folder, 10, grace_s=PATIENCE_S) as server:
        (folder / WAIT).touch()
        switching(server, profile(max_num_seqs=5))
        phase(server, "starting")
        during = complete(server)
        held(server, 1)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.status()["draining"], PATIENCE_S, "it stops")
        (folder / WAIT).unlink()
        assert during.json()["choices"][0]["text"] == expected("abc", 20)
        assert server.process.wait(PATIENCE_S) == 0
