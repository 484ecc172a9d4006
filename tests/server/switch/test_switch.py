"""``POST /admin/profile``: another engine takes the place of the one that serves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.fake_core import WAIT
from support.http_client import Server, refused, running
from support.streams import Bystanders, bystanders, expected, nothing_left, written
from support.switches import (
    BODY,
    CONTEXT,
    Asked,
    complete,
    held,
    phase,
    profile,
    stream,
    switch,
    switching,
)
from support.waiting import runs


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


def test_limits_of_the_server_alone_need_no_other_engine(server: Server) -> None:
    pid = server.status()["engine"]["pid"]
    with bystanders(server):
        done = switch(server, profile(max_waiting=3)).json()
    assert (done["seconds"], done["held"]) == (0, 0)
    status = server.status()
    assert status["engine"]["pid"] == pid
    assert status["engine"]["max_sequences"] == 256 + 3
    assert status["profile"]["made"] == done["made"]


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
