"""Switches that are refused or fail: the engine that serves goes on."""

from __future__ import annotations

from typing import Any

import pytest
from support.fake_core import NO_START
from support.http_client import Server, refused
from support.json_schema import fault
from support.streams import expected
from support.switches import CONTEXT, complete, held, profile, stream, switch, switching


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


def test_a_second_one_is_refused_while_one_is_pending(server: Server) -> None:
    with stream(server):
        asked = switching(server, profile("first", max_num_seqs=5))
        why = refused(switch(server, profile("second")), 409)
        assert why["code"] == "switch_pending"
        assert "a switch to the profile of first is pending" in why["message"]
    asked.json()
    assert server.status()["profile"]["made"] == "first"
    assert switch(server, profile("second", max_num_seqs=6)).status_code == 200
