"""Requests that the engine ends since what they ask for cannot be had: the client's own errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.http_client import Server

ASKED: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/responses": {"input": "a"},
}
JSON = {"type": "object", "properties": {"a": {"type": "integer"}}}
BOUND: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/completions": ({"guided_regex": "[a-z]+"}, "guided_regex"),
    "/v1/chat/completions": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": JSON},
            }
        },
        "response_format.json_schema.schema",
    ),
    "/v1/responses": (
        {"text": {"format": {"type": "json_schema", "name": "a", "schema": JSON}}},
        "text.format.schema",
    ),
}


def body(path: str, salt: str, bound: bool, **fields: Any) -> dict[str, Any]:
    more = BOUND[path][0] if bound else {}
    return {"model": "fake", "cache_salt": salt, **ASKED[path], **more, **fields}


def param(path: str, bound: bool) -> str | None:
    return BOUND[path][1] if bound else None


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("path", ASKED)
def test_a_whole_answer_is_a_400(server: Server, path: str, bound: bool) -> None:
    answer = server.post(path, body(path, "fault", bound))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param(path, bound)
    assert "it asks for too much" in error["message"]


@pytest.mark.parametrize("path", ASKED)
def test_so_is_a_stream_that_has_not_begun(server: Server, path: str) -> None:
    answer = server.post(path, body(path, "early fault", True, stream=True))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param(path, True)


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("path", ASKED)
def test_a_stream_that_has_begun_reports_the_same_error(
    server: Server, path: str, bound: bool
) -> None:
    asked = body(path, "late fault", bound, stream=True)
    with server.http.stream("POST", path, json=asked) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        next(lines)
        # The fault comes with a second request: the first has begun for certain.
        assert server.post(path, body(path, "", bound, stream=False)).status_code == 200
        last = json.loads([line for line in lines if line.startswith("data: ")][-1][6:])
    if path == "/v1/responses":
        assert last["type"] == "error"
        assert last["code"] == "invalid_request_error"
    else:
        last = last["error"]
        assert last["type"] == "invalid_request_error"
    assert last["param"] == param(path, bound)
    assert "it asks for too much" in last["message"]


@pytest.mark.parametrize("path", ASKED)
def test_what_the_engine_does_wrong_stays_a_500(server: Server, path: str) -> None:
    answer = server.post(path, body(path, "fail", True))
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
