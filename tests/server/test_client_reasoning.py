"""Reasoning: the chat template gets the variables that it reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import byte_tokenizer
from support.client_bodies import BODIES, CHAT, IGNORED, RESPONSES
from support.http_client import Server, running

EFFORT_TEMPLATE = (
    "{% set effort = reasoning_effort | default('medium') %}Effort {{ effort }}. "
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)


def with_template(folder: Path, template: str) -> Path:
    byte_tokenizer.write(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def effort_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(with_template(tmp_path_factory.mktemp("effort"), EFFORT_TEMPLATE), 1) as server:
        yield server


def prompt_tokens(server: Server, path: str, fields: dict[str, Any]) -> tuple[int, str]:
    """The number of tokens of the prompt, and what the header names."""
    answer = server.post(path, {**BODIES[path], **fields})
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    named = answer.headers.get(IGNORED, "")
    return usage["input_tokens" if path == RESPONSES else "prompt_tokens"], named


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_variables_that_the_template_does_not_read_are_named(
    effort_server: Server, path: str
) -> None:
    options = {"foo": 4, "reasoning_effort": "low", "a, b\r\nc: d": 1, "ä": 2}
    used, named = prompt_tokens(effort_server, path, {"chat_template_kwargs": options})
    assert used == len("Effort low. Hi")
    assert named == "chat_template_kwargs.foo, chat_template_kwargs.*"
    many = {f"v{i}": 0 for i in range(1000)}
    _, named = prompt_tokens(effort_server, path, {"chat_template_kwargs": many})
    assert len(named) < 1000


@pytest.mark.parametrize(
    ("path", "fields", "word"),
    [
        (CHAT, {}, "medium"),
        (CHAT, {"reasoning_effort": "minimal"}, "minimal"),
        (CHAT, {"reasoning": {"effort": "low"}}, "low"),
        (RESPONSES, {"reasoning": {"effort": "xhigh"}}, "xhigh"),
        (CHAT, {"chat_template_kwargs": {"reasoning_effort": "low"}}, "low"),
    ],
)
def test_a_template_that_reads_the_effort_is_told(
    effort_server: Server, path: str, fields: dict[str, Any], word: str
) -> None:
    used = len(f"Effort {word}. Hi")
    assert prompt_tokens(effort_server, path, fields) == (used, "")


def test_what_the_template_is_told_by_its_own_name_goes_first(effort_server: Server) -> None:
    fields = {"reasoning_effort": "none", "chat_template_kwargs": {"reasoning_effort": "high"}}
    used = len("Effort high. Hi")
    assert prompt_tokens(effort_server, CHAT, fields) == (used, "reasoning_effort")
    fields = {"thinking": {"type": "disabled"}}
    used = len("Effort medium. Hi")
    assert prompt_tokens(effort_server, CHAT, fields) == (used, "thinking.type")


@pytest.mark.parametrize(
    ("path", "fields", "on", "named"),
    [
        (CHAT, {"thinking": {"type": "enabled", "budget_tokens": 9}}, 1, "thinking.budget_tokens"),
        (CHAT, {"thinking": {"type": "disabled"}}, 0, ""),
        (CHAT, {"enable_thinking": True}, 1, ""),
        (CHAT, {"enable_thinking": False}, 0, ""),
        (CHAT, {"reasoning_effort": "none"}, 0, ""),
        (CHAT, {"reasoning_effort": "high"}, 1, "reasoning_effort"),
        (CHAT, {"reasoning": {"enabled": True, "exclude": False}}, 1, ""),
        (RESPONSES, {"reasoning": {"effort": "low", "summary": None}}, 1, "reasoning.effort"),
        (RESPONSES, {"reasoning": {"effort": "none"}}, 0, ""),
    ],
    ids=str,
)
def test_a_template_with_a_switch_is_told_on_and_off(
    server: Server, path: str, fields: dict[str, Any], on: bool, named: str
) -> None:
    switch = {"chat_template_kwargs": {"thinking": bool(on)}}
    used, _ = prompt_tokens(server, path, switch)
    assert prompt_tokens(server, path, fields) == (used, named)


def test_a_template_that_reads_neither_takes_them_for_advice(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with running(with_template(tmp_path, template), 1) as plain:
        fields = {"reasoning_effort": "high", "thinking": {"type": "enabled"}, "store": True}
        named = "store, reasoning_effort, thinking.type"
        assert prompt_tokens(plain, CHAT, fields) == (2, named)
        assert prompt_tokens(plain, RESPONSES, {"reasoning": {"effort": "low"}})[0] == 2
