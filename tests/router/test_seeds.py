"""Seeds that the router adds to requests without one, where each dialect has them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.router.asked import Body
from penstock.router.resume.dialects import streaming_at
from penstock.router.resume.seeds import SeedPlace

CHAT, COMPLETION = "/v1/chat/completions", "/completion"
OLLAMA, TGI = "/api/chat", "/generate_stream"
KSERVE = "/v2/models/a/b/versions/1/generate_stream"


def place_of(path: str) -> SeedPlace:
    streaming = streaming_at(path)
    assert streaming is not None
    return streaming.seed


@pytest.mark.parametrize(
    ("path", "data", "seeded"),
    [
        (CHAT, b'{"a":1}', b'{"seed":7,"a":1}'),
        (CHAT, b" {}", b' {"seed":7}'),
        (CHAT, b"{ \n}", b'{"seed":7 \n}'),
        (CHAT, b'{"b":"}","seed":null}', b'{"b":"}","seed":7}'),
        (COMPLETION, b'{"seed":-1,"b":1.50}', b'{"seed":7,"b":1.50}'),
        (OLLAMA, b'{"b":1.50}', b'{"b":1.50,"options":{"seed":7}}'),
        (OLLAMA, b'{"options":null}', b'{"options":{"seed":7}}'),
        (OLLAMA, b'{"options":{"seed":null}}', b'{"options":{"seed":7}}'),
        (OLLAMA, b'{"options": {"b": 1.50}}', b'{"options":{"seed":7,"b": 1.50}}'),
        (OLLAMA, b'{"options":[2]}', b'{"options":[2]}'),
        (TGI, b'{"inputs":"a","seed":3}', b'{"inputs":"a","seed":3,"parameters":{"seed":7}}'),
        (KSERVE, b'{"text_input":"a"}', b'{"seed":7,"text_input":"a"}'),
        (KSERVE, b'{"parameters":{"seed":null}}', b'{"seed":7,"parameters":{"seed":null}}'),
    ],
)
def test_a_seed_is_added(path: str, data: bytes, seeded: bytes) -> None:
    body = Body.of(data)
    assert body is not None
    place = place_of(path)
    assert not place.is_given(body)
    assert place.put(data, 7) == seeded


@pytest.mark.parametrize(
    ("path", "given"),
    [
        (CHAT, {"seed": 0}),
        (CHAT, {"seed": -1}),
        (COMPLETION, {"seed": 3}),
        (OLLAMA, {"options": {"seed": 3}}),
        (TGI, {"parameters": {"seed": "no number"}}),
        (KSERVE, {"seed": 3}),
        (KSERVE, {"random_seed": 3}),
        (KSERVE, {"parameters": {"random_seed": 3}}),
        (KSERVE, {"sampling_parameters": {"seed": 3}}),
        (KSERVE, {"sampling_parameters": '{"seed": "3"}'}),
    ],
)
def test_one_that_is_given_is_seen(path: str, given: dict[str, Any]) -> None:
    body = Body.of(json.dumps(given).encode())
    assert body is not None
    assert place_of(path).is_given(body)


@pytest.mark.parametrize(
    ("path", "given", "asks"),
    [
        (CHAT, {}, False),
        (CHAT, {"stream": True}, True),
        (OLLAMA, {}, True),
        (OLLAMA, {"stream": None}, True),
        (OLLAMA, {"stream": False}, False),
        (COMPLETION, {}, False),
        (TGI, {}, True),
        ("/", {}, False),
        ("/", {"stream": True}, True),
        (KSERVE, {"stream": False}, True),
    ],
)
def test_which_requests_are_for_streams(path: str, given: dict[str, Any], asks: bool) -> None:
    body, streaming = Body.of(json.dumps(given).encode()), streaming_at(path)
    assert body is not None
    assert streaming is not None
    assert streaming.asked_by(body) is asks


@pytest.mark.parametrize("path", ["/api/embed", "/generate", "/v2/models/a/generate", "/v1/models"])
def test_paths_without_streams(path: str) -> None:
    assert streaming_at(path) is None
