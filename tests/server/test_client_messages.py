"""Conversations, as clients send an answer back, with what they add to it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from support.client_bodies import BODIES, CHAT, IGNORED, TOKENIZE, USER, text_of
from support.http_client import Server


def second_turn(server: Server, said: dict[str, Any], first: bool = True) -> httpx.Response:
    messages = [USER, said, USER] if first else [said, USER]
    return server.post(CHAT, {**BODIES[CHAT], "messages": messages})


@pytest.mark.parametrize(
    "said",
    [
        {"content": "a", "refusal": None, "provider_specific_fields": {"refusal": None}},
        {"content": "a", "tool_calls": None, "function_call": None, "annotations": []},
        {"content": "a", "audio": None, "parsed": {"a": 1}, "id": "msg", "images": []},
        {"content": "a", "thinking_blocks": [{"type": "thinking", "thinking": "x"}]},
        {"content": "a", "reasoning_details": [], "annotations": [{"type": "url_citation"}]},
    ],
    ids=str,
)
def test_a_second_turn(server: Server, said: dict[str, Any]) -> None:
    plain = second_turn(server, {"role": "assistant", "content": "a"})
    assert text_of(CHAT, second_turn(server, {"role": "assistant", **said})) == text_of(CHAT, plain)


@pytest.mark.parametrize("said", [{}, {"content": None}, {"content": None, "tool_calls": []}])
def test_an_answer_without_content_is_empty(server: Server, said: dict[str, Any]) -> None:
    plain = second_turn(server, {"role": "assistant", "content": ""})
    assert text_of(CHAT, second_turn(server, {"role": "assistant", **said})) == text_of(CHAT, plain)


def tokens(server: Server, *messages: dict[str, Any], **fields: Any) -> list[int]:
    answer = server.post(TOKENIZE, {"messages": messages, **fields})
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["tokens"]
    return found


def test_reasoning_is_another_name_of_reasoning_content(tool_server: Server) -> None:
    said = {"role": "assistant", "content": "a"}
    known = tokens(tool_server, USER, {**said, "reasoning_content": "Hm."})
    assert known != tokens(tool_server, USER, said)
    assert tokens(tool_server, USER, {**said, "reasoning": "Hm."}) == known
    both = {**said, "reasoning": "Hm.", "reasoning_content": "Hm."}
    assert tokens(tool_server, USER, both) == known
    body = {"messages": [USER, {**both, "reasoning": "Ah."}]}
    error = tool_server.post(TOKENIZE, body).json()["error"]
    assert error["param"] == "messages[1].reasoning"
    error = tool_server.post(TOKENIZE, {"messages": [{**USER, "reasoning": "Hm."}]}).json()["error"]
    assert error["param"] == "messages[0].reasoning"


def test_a_call_may_come_back_with_what_a_client_added(tool_server: Server) -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    call = {"id": "c1", "type": "function", "function": function}
    done = {"role": "tool", "tool_call_id": "c1", "content": "2"}
    noted = {
        **call,
        "index": 0,
        "extra_content": {"google": {"thought_signature": "x"}},
        "function": {**function, "parsed_arguments": {"a": 1}, "parameters": None},
    }
    plain, given = (
        tokens(tool_server, USER, {"role": "assistant", "tool_calls": [each]}, done)
        for each in (call, noted)
    )
    assert plain == given


def test_notes_in_tools_are_not_shown_to_the_model(tool_server: Server) -> None:
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    tool = {"type": "function", "function": function}
    noted = {
        **tool,
        "cache_control": {"type": "ephemeral"},
        "function": {**function, "strict": None},
    }
    used = []
    for each in (tool, noted):
        body = {**BODIES[CHAT], "tools": [each]}
        answer = tool_server.post(CHAT, body)
        assert answer.status_code == 200, answer.text
        used.append(answer.json()["usage"]["prompt_tokens"])
    assert used[0] == used[1]
    assert answer.headers[IGNORED] == "tools[].cache_control"
