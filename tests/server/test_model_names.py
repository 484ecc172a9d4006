"""Which model a request is for, by its path, its query and its body."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.server.error_forms import error_form
from penstock.server.errors import ApiError
from penstock.server.models.named import (
    Asked,
    asked_in,
    at_model,
    model_path,
    query_model,
)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v2/models/a", Asked("a", None, "")),
        ("/v2/models/own/a/infer", Asked("own/a", None, "/infer")),
        ("/v2/models/a/versions/2", Asked("a", "2", "")),
        ("/v2/models/own/a/versions/2/generate_stream", Asked("own/a", "2", "/generate_stream")),
        ("/v2/models/a:2/ready", Asked("a:2", None, "/ready")),
        ("/v2/models/stats", None),
        ("/v2/models/", None),
        ("/v2/health/ready", None),
        ("/v1/models/a", None),
    ],
)
def test_paths(path: str, asked: Asked | None) -> None:
    assert model_path(path) == asked


def test_a_request_as_its_model_gets_it() -> None:
    scope: dict[str, Any] = {"path": "/v2/models/x/versions/2/infer", "method": "POST"}
    found = at_model(scope, "ä b:2", "/infer")
    assert (found["path"], found["method"]) == ("/v2/models/ä b:2/infer", "POST")
    assert found["raw_path"] == b"/v2/models/%C3%A4%20b%3A2/infer"


def test_queries() -> None:
    assert query_model({"query_string": b"autoload=1&model=own%2Fa"}) == Asked("own/a")
    assert query_model({"query_string": b"fail_on_no_slot=1"}) == Asked()


@pytest.mark.parametrize(
    ("path", "body", "asked"),
    [
        ("/v1/completions", b"", Asked()),
        ("/v1/completions", b'{"prompt": "a"}', Asked()),
        ("/v1/completions", b'{"model": null}', Asked()),
        ("/v1/completions", b'{"messages": [{"model": "x"}], "model": "a"}', Asked("a")),
        ("/v1/completions", b'{"model": "a", "keep_alive": 5}', Asked("a")),
        ("/api/chat", b'{"model": "a", "keep_alive": "5m"}', Asked("a", keep_alive="5m")),
        ("/api/chat", b'{"model": "a", "keep_alive": []}', Asked("a")),
        ("/api/show", b'{"name": "a"}', Asked("a")),
        ("/api/chat", b'{"name": "a"}', Asked()),
        ("/v1/completions", b'{"x": "' + b"y" * 300_000 + b'", "model": "a"}', Asked("a")),
    ],
)
def test_bodies(path: str, body: bytes, asked: Asked) -> None:
    assert asyncio.run(asked_in(path, body)) == asked


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b'{"model": 3}', b'{"model": {}}'])
def test_bodies_that_name_none(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        asyncio.run(asked_in("/v1/completions", body))
    assert caught.value.status == 400


def test_each_dialect_has_its_errors() -> None:
    failure = ApiError(404, "no")
    found = {path: error_form(path).body(failure) for path in ("/api/chat", "/v2", "/v1/messages")}
    assert found["/api/chat"] == found["/v2"] == b'{"error":"no"}'
    assert b'"type":"error"' in found["/v1/messages"]
    assert b'"code":404' in error_form("/completion").body(failure)
    assert b"error_type" in error_form("/generate").body(failure)
    assert error_form("/v1/completions").body(failure) == failure.json()
