"""What chat templates are told of earlier calls, results and reasoning."""

from __future__ import annotations

import json
from typing import Any

from penstock.parsing.history import as_template_reads
from penstock.parsing.known_styles import TOOL_STYLES

STYLES = {style.name: style for style in TOOL_STYLES}
HI = {"role": "user", "content": "Hi"}


def call(name: str, **fields: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": {"city": "Žilina"}}
    calls = [{"id": f"of {name}", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls, **fields}


def result(of: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"of {of}", "content": text, **fields}


def test_messages_without_calls_stay_as_they_are() -> None:
    messages = [HI, {"role": "assistant", "content": "Yes."}]
    for style in (None, *TOOL_STYLES):
        assert as_template_reads(messages, style, "") == messages


def test_reasoning_has_the_name_that_the_template_reads() -> None:
    said = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    for template, names in (
        ("{{ message.reasoning_content }}", {"reasoning"}),  # harmless, of the same beginning
        ("{{ message.thinking }}", {"thinking"}),
        ("{{ message['thinking'] }}", {"thinking"}),
        ("{{ message.get('reasoning') }}", {"reasoning"}),
        ("{% if thinking %}", set()),
    ):
        (told,) = as_template_reads([said], None, template)
        assert told == {**said, **dict.fromkeys(names, "Hm.")}
        assert as_template_reads([HI], None, template) == [HI]


def test_results_with_the_names_of_functions() -> None:
    messages = [HI, call("f"), result("f", "1"), result("g", "2"), result("f", "3", name="own")]
    for style in ("gemma", "functiongemma"):
        told = as_template_reads(messages, STYLES[style], "{{ tool_call_id }}")
        assert [message.get("name") for message in told] == [None, None, "f", None, "own"]
    assert as_template_reads(messages, STYLES["hermes"], "") == messages


def test_results_within_the_messages_that_called() -> None:
    messages = [call("f"), result("f", '{"t": 5}'), result("f", "[5]"), HI, result("f", "x")]
    told = as_template_reads(messages, STYLES["gemma"], "{{ message['tool_responses'] }}")
    responses = [{"name": "f", "response": {"t": 5}}, {"name": "f", "response": "[5]"}]
    assert told == [{**call("f"), "tool_responses": responses}, HI, {**messages[-1], "name": "f"}]
    assert "tool_responses" not in messages[0]


def test_arguments_as_text() -> None:
    (told,) = as_template_reads([call("f")], STYLES["apertus"], "")
    arguments = told["tool_calls"][0]["function"]["arguments"]
    assert arguments == '{"city": "Žilina"}'
    assert isinstance(call("f")["tool_calls"][0]["function"]["arguments"], dict)
    assert json.loads(arguments) == {"city": "Žilina"}
