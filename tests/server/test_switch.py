"""``POST /admin/profile``: another engine takes the place of the one that serves."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from support import byte_tokenizer
from support.fake_core import NO_START, WAIT
from support.http_client import Server, refused, running
from support.json_schema import fault
from support.profiles import profile_of_another
from support.streams import Bystanders, bystanders, expected, nothing_left, posted, raw, written
from support.waiting import PATIENCE_S, runs, until

from penstock.profile import ProfileOptions

BODY = {"model": "fake", "prompt": "abc", "max_tokens": 20}
CONTEXT = 5000
LONG = {**BODY, "max_tokens": 4000, "stream": True}
"""More than any test waits for."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return byte_tokenizer.write(tmp_path / "tokenizer")


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    """A server whose steps take 10 ms."""
    with running(folder, 10, max_model_len=CONTEXT) as server:
        yield server


class Asked:
    """A request of a thread's own."""

    def __init__(self, ask: Callable[[], httpx.Response]) -> None:
        self._found: list[httpx.Response | httpx.HTTPError] = []
        self._ask = ask
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found.append(self._ask())
        except httpx.HTTPError as error:
            self._found.append(error)

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def answer(self) -> httpx.Response:
        self._thread.join(PATIENCE_S)
        (found,) = self._found
        assert isinstance(found, httpx.Response), found
        return found

    def json(self, status: int = 200) -> Any:
        response = self.answer()
        assert response.status_code == status, response.text
        return response.json()


def profile(made: str = "2026-02-02T00:00:00+00:00", **options: Any) -> dict[str, Any]:
    found = profile_of_another(ProfileOptions(**options), made=made)
    decoded: dict[str, Any] = json.loads(msgspec.json.encode(found))
    return decoded


def switch(server: Server, body: dict[str, Any], within_s: float | None = 0) -> httpx.Response:
    within = {} if within_s is None else {"within_s": within_s}
    return server.admin("profile", {"profile": body, **within})


def switching(server: Server, body: dict[str, Any], within_s: float | None = 0) -> Asked:
    """A switch that has begun; without a number of seconds, it holds no request if it can."""
    asked = Asked(lambda: switch(server, body, within_s))
    until(lambda: pending(server) or not asked.waits, PATIENCE_S, "pending")
    return asked


def pending(server: Server) -> dict[str, Any] | None:
    found: dict[str, Any] | None = server.status()["profile"]["pending"]
    return found


def phase(server: Server, name: str) -> None:
    until(lambda: (pending(server) or {}).get("phase") == name, PATIENCE_S, name)


def held(server: Server, number: int) -> None:
    try:
        until(lambda: (pending(server) or {}).get("held") == number, PATIENCE_S, "held")
    except AssertionError:
        raise AssertionError(f"{number} are not held, as {server.status()} shows") from None


def complete(server: Server, **fields: Any) -> Asked:
    return Asked(lambda: server.post("/v1/completions", {**BODY, **fields}))


@contextlib.contextmanager
def stream(server: Server) -> Iterator[Iterator[bytes]]:
    """A long answer that has begun."""
    with server.http.stream("POST", "/v1/completions", json=LONG) as response:
        parts = response.iter_bytes()
        yield iter([next(parts)])


def test_without_requests_it_is_done_at_once(server: Server) -> None:
    before = server.status()
    assert before["profile"] == {"made": None, "pending": None, "failed": None}
    done = switch(server, profile(max_model_len=100), None).json()
    assert done["made"] == "2026-02-02T00:00:00+00:00"
    assert done["seconds"] > 0
    assert (done["held"], done["longest_held_s"], done["notes"]) == (0, 0, [])
    after = server.status()
    assert after["profile"] == {"made": done["made"], "pending": None, "failed": None}
    assert after["engine"]["pid"] != before["engine"]["pid"]
    assert not runs(before["engine"]["pid"])
    assert after["engine"]["trouble"] is None
    assert server.metric("engine_restarts_total") == 0
    assert server.metric("engine_up") == 1


def test_what_the_server_says_of_the_engine_is_true_of_the_next(server: Server) -> None:
    def told() -> tuple[int, int]:
        (card,) = server.http.get("/v1/models").json()["data"]
        schemas = server.http.get("/openapi.json").json()["components"]["schemas"]
        asked = schemas["ChatRequest"]["properties"]["max_tokens"]["anyOf"]
        (most,) = (each["maximum"] for each in asked if "maximum" in each)
        return card["max_model_len"], most

    assert told() == (CONTEXT, CONTEXT - 1)
    created = server.http.get("/v1/models/fake").json()["created"]
    assert server.post("/v1/completions", {**BODY, "max_tokens": 200}).status_code == 200
    switch(server, profile(max_model_len=100, max_waiting=7))
    assert told() == (100, 99)
    assert server.http.get("/v1/models/fake").json()["created"] == created
    assert server.post("/tokenize", {"prompt": "a"}).json()["max_model_len"] == 100
    too_long = refused(server.post("/v1/completions", {**BODY, "max_tokens": 200}))
    assert too_long["code"] == "context_length_exceeded"
    assert server.status()["engine"]["max_sequences"] == 256 + 7


def test_requests_wait_for_the_next_engine_and_none_fails(server: Server, folder: Path) -> None:
    (folder / WAIT).touch()
    before = Bystanders(server, ["before", "also before"], 30)
    before.start()
    asked = switching(server, profile(max_num_seqs=5))
    during = [
        complete(server),
        complete(server, stream=True),
        complete(server, prompt=["ab", "cd"], n=2),
        Asked(lambda: server.post("/v1/embeddings", {"model": "fake", "input": ["a", "b"]})),
        Asked(
            lambda: server.post(
                "/v1/chat/completions",
                {"model": "fake", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4},
            )
        ),
        Asked(
            lambda: server.post(
                "/v1/responses", {"model": "fake", "input": "a", "max_output_tokens": 4}
            )
        ),
    ]
    held(server, len(during))
    before.check()
    phase(server, "starting")
    assert all(each.waits for each in during)
    assert server.ready()
    assert server.post("/tokenize", {"prompt": "a"}).status_code == 200  # needs no engine
    assert server.status()["engine"]["open_sequences"] == 1 + 1 + 4 + 2 + 1 + 1
    (folder / WAIT).unlink()
    done = asked.json()
    assert done["held"] == len(during)
    assert done["longest_held_s"] > 0
    whole, streamed, several, *others = during
    assert whole.json()["choices"][0]["text"] == expected("abc", 20)
    assert written(streamed.answer().content) == (expected("abc", 20), "length")
    assert len(several.json()["choices"]) == 4
    for other in others:
        other.json()
    server.engine_pid = server.status()["engine"]["pid"]
    with nothing_left(server), bystanders(server):
        pass


def test_it_waits_for_a_moment_without_requests(server: Server) -> None:
    with stream(server):
        asked = switching(server, profile(max_num_seqs=5), None)
        phase(server, "waiting")
        # Served by the engine that runs.
        assert complete(server).json()["choices"][0]["text"] == expected("abc", 20)
        phase(server, "waiting")
    assert asked.json()["held"] == 0


def test_one_that_does_not_start_leaves_everything_as_it_was(server: Server) -> None:
    with stream(server):
        asked = switching(server, profile(max_num_seqs=NO_START, max_model_len=100))
        during = complete(server)
        held(server, 1)
    why = refused(asked.answer(), 422)
    assert why["code"] == "profile_not_applied"
    assert f"max_num_seqs is {NO_START}; lower it" in why["message"]
    assert "the server goes on as before" in why["message"]
    assert during.json()["choices"][0]["text"] == expected("abc", 20)
    status = server.status()["profile"]
    assert (status["made"], status["pending"]) == (None, None)
    assert f"max_num_seqs is {NO_START}" in status["failed"]
    assert server.http.get("/v1/models/fake").json()["max_model_len"] == CONTEXT
    switch(server, profile(max_num_seqs=5))
    assert server.status()["profile"]["failed"] is None


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "the field 'profile' is required"),
        ({"profile": 3}, "profile: expected object"),
        ({"profile": {"version": 2}}, "the profile is a profile of version 2, and this Penstock"),
        ({"profile": {"version": 1, "colour": 1}}, "the profile is no profile"),
        ({"profile": profile(max_num_seqs=5), "within_s": -1}, "within_s: expected float >= 0.0"),
        ({"profile": profile(max_num_seqs=5), "wihtin_s": 1}, "did you mean 'within_s'"),
        (
            {"profile": {**profile(), "options": {"max_num_seq": 5}}},
            "did you mean 'max_num_seqs'",
        ),
        ({"profile": {**profile(), "options": {"max_waiting": -1}}}, ">= 0"),
        # JSON's numbers have no bound, and those of a message to the engine have.
        ({"profile": {**profile(), "options": {"max_num_seqs": 10**30}}}, "<= 9223372036854775807"),
        ({"profile": {**profile(), "options": {"max_waiting": 1 << 63}}}, "<= 9223372036854775807"),
        ({"profile": profile("")}, "of length >= 1"),
        ({"profile": profile("m" * 65)}, "of length <= 64"),
        ({"profile": {**profile(), "seed": -(10**30)}}, ">= -9223372036854775807"),
    ],
)
def test_what_is_no_profile_is_refused(slow_server: Server, body: Any, told: str) -> None:
    pid = slow_server.status()["engine"]["pid"]
    assert told in refused(slow_server.admin("profile", body))["message"]
    assert slow_server.status()["engine"]["pid"] == pid


def test_what_is_asked_and_answered_is_in_the_document(server: Server) -> None:
    document = server.http.get("/openapi.json").json()
    operation = document["paths"]["/admin/profile"]["post"]
    assert operation["security"] == [{"admin": []}]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    body = {"profile": profile(max_num_seqs=5), "within_s": 600}
    assert fault(body, schema, document) is None
    assert fault({"within_s": 600}, schema, document) is not None
    assert fault({**body, "within_s": 10**6}, schema, document) is not None
    answer = server.admin("profile", body)
    seen = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert fault(answer.json(), seen, document) is None
    assert server.http.post("/admin/profile", json=body).status_code == 401


def test_limits_of_the_server_alone_need_no_other_engine(server: Server) -> None:
    pid = server.status()["engine"]["pid"]
    with bystanders(server):
        done = switch(server, profile(max_waiting=3)).json()
    assert (done["seconds"], done["held"]) == (0, 0)
    status = server.status()
    assert status["engine"]["pid"] == pid
    assert status["engine"]["max_sequences"] == 256 + 3
    assert status["profile"]["made"] == done["made"]


def test_a_second_one_is_refused_while_one_is_pending(server: Server) -> None:
    with stream(server):
        asked = switching(server, profile("first", max_num_seqs=5))
        why = refused(switch(server, profile("second")), 409)
        assert why["code"] == "switch_pending"
        assert "a switch to the profile of first is pending" in why["message"]
    asked.json()
    assert server.status()["profile"]["made"] == "first"
    assert switch(server, profile("second", max_num_seqs=6)).status_code == 200


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


def test_the_number_of_those_held_has_the_usual_limit(folder: Path) -> None:
    with running(folder, 10, max_model_len=CONTEXT, max_waiting=4) as server:
        with stream(server):
            asked = switching(server, profile(max_num_seqs=5, max_waiting=0))
            filling = [complete(server, n=128, max_tokens=2) for _ in range(2)]
            held(server, 2)
            last = complete(server, prompt=["a", "b", "c"], max_tokens=2)
            held(server, 3)
            full = refused(server.post("/v1/completions", BODY), 429)
            assert full["code"] == "queue_full"
        # The next limit, 256, is below what is held, which was admitted by the former.
        for each in (*filling, last):
            assert {c["finish_reason"] for c in each.json()["choices"]} == {"length"}
        assert asked.json()["held"] == 3
        assert server.status()["engine"]["max_sequences"] == 256
        assert server.metric("request_queue_full_total") == 1


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


def test_a_drained_server_can_be_switched(server: Server) -> None:
    with stream(server):
        server.admin("drain", {})
        asked = switching(server, profile(max_num_seqs=5))
    assert asked.json()["held"] == 0
    server.admin("resume", {})
    assert server.post("/v1/completions", BODY).status_code == 200


def test_the_log_says_what_happened(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    settings: dict[str, Any] = {"max_model_len": CONTEXT, "log_format": "json"}
    with log.open("wb") as stderr, running(folder, 10, stderr, **settings) as server:
        with stream(server):
            asked = switching(server, profile("today", max_num_seqs=5))
            during = complete(server)
            held(server, 1)
        asked.json()
        during.json()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (said,) = (each["message"] for each in lines if "is in force" in each["message"])
    assert "the profile of today is in force after" in said
    assert "max_num_seqs 5" in said
    assert "requests held: 1, the longest for" in said
    held_s = [each["held_s"] for each in lines if "held_s" in each]
    assert len(held_s) == 1
    assert held_s[0] > 0
