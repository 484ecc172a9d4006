"""Tools in the messages of chats whose template shows none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.parsing.answer_parser import AnswerParser
from penstock.parsing.described_tools import with_described_tools, written_call
from penstock.parsing.history import with_numbered_ids
from penstock.parsing.known_styles import GENERIC
from penstock.parsing.style import Start
from penstock.parsing.styles import Styles
from penstock.tokenizer.chat import ChatTemplate

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "f", "description": "Weather in {city}", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": {**FUNCTION, "strict": True}}]
SYSTEM = {"role": "system", "content": "Be brief."}
HI = {"role": "user", "content": "Hi"}

PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
BY_TURNS = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}|{% endfor %}"
)


def said(*messages: dict[str, Any], system_role: bool = True) -> list[dict[str, Any]]:
    return [dict(each) for each in with_described_tools(messages, TOOLS, GENERIC, system_role)]


def call(*names: str, content: str = "") -> dict[str, Any]:
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": {"a": "ž"}}}
        for i, name in enumerate(names)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(i: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"c{i}", "content": text}


@pytest.mark.parametrize(
    ("messages", "system_role", "roles", "described"),
    [
        ([HI], True, ["system", "user"], 0),
        ([SYSTEM, HI], True, ["system", "user"], 0),
        ([HI], False, ["user"], 0),
        ([SYSTEM, HI], False, ["system", "user"], 1),
        ([{"role": "assistant", "content": "Yes?"}], False, ["user", "assistant"], 0),
        ([], True, ["system"], 0),
    ],
)
def test_where_tools_are_described(
    messages: list[dict[str, Any]], system_role: bool, roles: list[str], described: int
) -> None:
    found = said(*messages, system_role=system_role)
    assert [message["role"] for message in found] == roles
    assert [json.dumps(FUNCTION) in message["content"] for message in found].index(
        True
    ) == described
    assert "strict" not in found[described]["content"]
    for message in messages:
        assert any(message["content"] in each["content"] for each in found)
    assert with_described_tools(messages, [], GENERIC, system_role) == messages


def test_calls_and_what_they_returned() -> None:
    found = said(HI, call("f", "g", content="I look."), result(1, "No."), result(0, "Rain."), HI)
    assert [message["role"] for message in found] == ["system", "user", "assistant", "user"]
    _, _, calls, results = found
    assert "tool_calls" not in calls
    assert results["content"] == (
        "<tool_response>\ng returned:\nNo.\n</tool_response>\n"
        "<tool_response>\nf returned:\nRain.\n</tool_response>\n\nHi"
    )
    parser = AnswerParser(None, Start.BEGINNING, GENERIC, {"f": {}, "g": {}}, eager=False)
    read = parser.push(calls["content"])
    read.add(parser.finish())
    assert read.content == "I look."
    assert [(each.name, each.arguments) for each in read.calls] == [
        ("f", '{"a": "ž"}'),
        ("g", '{"a": "ž"}'),
    ]


def test_a_result_without_its_call() -> None:
    assert "a function returned:\nRain." in said(result(5, "Rain."))[1]["content"]


def test_users_and_assistants_take_turns() -> None:
    messages = said(HI, call("f", "g"), result(0, "1"), result(1, "2"), system_role=False)
    template = ChatTemplate(BY_TURNS, {})
    assert template.render(messages, tools=[]).count("|") == 3


@pytest.mark.parametrize(
    ("template", "style", "system_role"),
    [
        (PLAIN, "generic", True),
        ("{{ bos_token + messages[0].content }}", "generic", True),
        (
            "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}",
            "generic",
            False,
        ),
        (BY_TURNS, "generic", False),
        ("{% if tools %}{{ tools }}{% endif %}" + PLAIN, None, True),
    ],
)
def test_templates_that_show_no_tools(template: str, style: str | None, system_role: bool) -> None:
    found = Styles.choose("auto", "auto", {"default": template})
    assert (found.tools and found.tools.name, found.system_role) == (style, system_role)
    assert found.takes_tools is (style is not None)
    assert Styles.choose("generic", "auto", {"default": template}).takes_tools
    assert not Styles.choose("none", "auto", {"default": template}).takes_tools
    assert Styles.choose("hermes", "auto", {"default": template}).takes_tools is (style is None)


def test_no_template_has_no_style() -> None:
    assert Styles.choose("auto", "auto", {}).tools is None


def test_a_written_call_is_what_the_grammar_has() -> None:
    text = written_call("f", {"a": 1}, GENERIC)
    assert text == '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def test_numbered_ids() -> None:
    later = call("f")
    messages = [HI, call("f", "g"), result(1, "1"), result(0, "2"), later, result(0, "3"), HI]
    found = with_numbered_ids([*messages, result(7, "4")])
    ids = [[each["id"] for each in m.get("tool_calls", [])] or m.get("tool_call_id") for m in found]
    first, second, third = "functions.f:0", "functions.g:1", "functions.f:2"
    assert ids == [None, [first, second], second, first, [third], third, None, "c7"]
    assert messages[4] is later
    assert later["tool_calls"][0]["id"] == "c0"
