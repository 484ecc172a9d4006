"""How long a prompt is to stay on disk, as each dialect says it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.interface.messages import RequestOptions
from penstock.server.anthropic.field_table import rules_of as anthropic_rules
from penstock.server.anthropic.input import as_chat
from penstock.server.anthropic.paths import MESSAGES
from penstock.server.anthropic.protocol import MessageRequest
from penstock.server.errors import ApiError
from penstock.server.keeping import kept
from penstock.server.openai.body import DialectDecoder
from penstock.server.openai.field_table import rules_of
from penstock.server.openai.paths import CHAT
from penstock.server.openai.protocol import ChatRequest

EPHEMERAL = {"type": "ephemeral"}
HOUR = {**EPHEMERAL, "ttl": "1h"}
USER = {"role": "user", "content": "Hi"}


def message(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 1, "messages": [USER], **fields}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [USER], **fields}


def text(control: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": "x", "cache_control": control}]


SPOKEN = {"role": "user", "content": text(HOUR)}
MESSAGE_CASES: list[tuple[dict[str, Any], float | None, bool]] = [
    (message(), None, False),
    (message(cache_control=EPHEMERAL), 300, False),
    (message(system=text(EPHEMERAL)), 300, False),
    (message(system=text(EPHEMERAL), messages=[SPOKEN]), 3600, False),
    (message(tools=[{"name": "f", "input_schema": {}, "cache_control": HOUR}]), 3600, False),
    (message(system=text({**EPHEMERAL, "ttl": "9y"})), None, True),
    (message(system=text({**EPHEMERAL, "ttl": 5})), None, True),
    (message(system=text({"type": "persistent"})), None, True),
    (message(system=text("5m")), None, True),
    (message(cache_keep_s=20, cache_control=HOUR), 20, False),
]  # fmt: skip


@pytest.mark.parametrize(("body", "seconds", "named"), MESSAGE_CASES)
def test_messages(body: dict[str, Any], seconds: float | None, named: bool) -> None:
    rules = anthropic_rules(MESSAGES)
    decoded = DialectDecoder(MessageRequest, rules, keeps=True).decode(json.dumps(body).encode())
    assert decoded.request.cache_keep_s == seconds
    assert as_chat(decoded.request).cache_keep_s == seconds
    assert bool(decoded.named) == named
    # An engine that keeps nothing says so of what it is asked by the way.
    without = DialectDecoder(MessageRequest, rules).decode(json.dumps(body).encode())
    assert without.request.cache_keep_s == body.get("cache_keep_s")
    assert bool(without.named) == ("cache_control" in json.dumps(body))


@pytest.mark.parametrize(
    ("fields", "seconds", "named"),
    [
        ({"prompt_cache_retention": "24h"}, 86_400, False),
        ({"prompt_cache_retention": "in_memory"}, None, True),
        ({"prompt_cache_key": "k"}, None, True),
        ({"messages": [{"role": "user", "content": text(EPHEMERAL)}]}, 300, False),
        ({"cache_keep_s": 0}, 0, False),
        ({"cache_keep_s": None}, None, False),
    ],
)
def test_chats(fields: dict[str, Any], seconds: float | None, named: bool) -> None:
    decoder = DialectDecoder(ChatRequest, rules_of(CHAT), keeps=True)
    decoded = decoder.decode(json.dumps(chat(**fields)).encode())
    assert decoded.request.cache_keep_s == seconds
    assert bool(decoded.named) == named


@pytest.mark.parametrize("value", [-1, 86_401, "1h", True, 1e300])
def test_what_is_no_time_is_refused(value: object) -> None:
    decoder = DialectDecoder(ChatRequest, rules_of(CHAT), keeps=True)
    with pytest.raises(ApiError) as caught:
        decoder.decode(json.dumps(chat(cache_keep_s=value)).encode())
    assert caught.value.body.error.param == "cache_keep_s"


def test_a_server_that_keeps_nothing_refuses_the_field() -> None:
    class Model:
        block_place = None

    class Bare:
        model = Model()

    engine: Any = Bare()
    assert kept(RequestOptions(), None, engine) == RequestOptions()
    assert kept(RequestOptions(), 0, engine) == RequestOptions()
    with pytest.raises(ApiError, match="--kv-disk"):
        kept(RequestOptions(), 60, engine)
