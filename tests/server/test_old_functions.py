"""``functions`` and ``function_call``: calls in the form that OpenAI's API had before tools."""

from __future__ import annotations

from typing import Any

import pytest
from support.http_client import Server

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Žilina"}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
USER = [{"role": "user", "content": "a"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTIONS: list[Any] = [
    {"name": "get_weather", "parameters": SCHEMA},
    {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
]


def ask(server: Server, say: str, **fields: Any) -> Any:
    fields = {"messages": USER, "functions": FUNCTIONS, **fields}
    return server.client().chat.completions.create(
        model="fake", extra_body={"cache_salt": f"say {say}"}, **fields
    )


@pytest.mark.parametrize("say", [f"Well. {CALL}", f"Well. {CALL}\n{TIME}"])
@pytest.mark.parametrize("choice", [{}, {"function_call": "auto"}])
def test_one_call_comes_in_the_old_form(
    tool_server: Server, say: str, choice: dict[str, Any]
) -> None:
    answer = ask(tool_server, say, **choice).choices[0]
    assert answer.finish_reason == "function_call"
    assert answer.message.tool_calls is None
    assert answer.message.content == "Well."
    called = answer.message.function_call
    assert (called.name, called.arguments) == ("get_weather", '{"city": "Žilina"}')
    name = arguments = content = ""
    for chunk in ask(tool_server, say, stream=True, **choice):
        (part,) = chunk.choices
        assert part.delta.tool_calls is None
        content += part.delta.content or ""
        if part.delta.function_call is not None:
            name += part.delta.function_call.name or ""
            arguments += part.delta.function_call.arguments or ""
    assert (name, arguments, content) == (called.name, called.arguments, "Well.")
    assert part.finish_reason == "function_call"


def test_none_and_no_call(tool_server: Server) -> None:
    answer = ask(tool_server, CALL, function_call="none").choices[0]
    assert (answer.message.content, answer.finish_reason) == (CALL, "stop")
    answer = ask(tool_server, "Well.").choices[0]
    assert (answer.message.content, answer.finish_reason) == ("Well.", "stop")
    assert answer.message.function_call is None


def test_the_model_is_shown_what_it_would_be_of_tools(tool_server: Server) -> None:
    old = ask(tool_server, "x").usage.prompt_tokens
    tools = [{"type": "function", "function": each} for each in FUNCTIONS]
    new = tool_server.client().chat.completions.create(
        model="fake", messages=USER, tools=tools, extra_body={"cache_salt": "say x"}
    )  # type: ignore[call-overload]
    assert old == new.usage.prompt_tokens
    named = ask(tool_server, CALL, function_call={"name": "get_weather"})
    assert named.choices[0].message.function_call.name == "get_weather"


def test_a_conversation(tool_server: Server) -> None:
    message = ask(tool_server, CALL).choices[0].message
    done = {"role": "function", "name": "get_weather", "content": "7"}
    history = [*USER, message.model_dump(), done]
    assert ask(tool_server, "It is 7.", messages=history).choices[0].message.content == "It is 7."
    calls = [
        {"id": "call00001", "type": "function", "function": message.function_call.model_dump()}
    ]
    new = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call00001", "content": "7", "name": "get_weather"},
    ]
    reported = [
        tool_server.post("/tokenize", {"messages": each}).json()["tokens"]
        for each in (history, new)
    ]
    assert reported[0] == reported[1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": FUNCTIONS, "tools": [{"type": "function", "function": FUNCTIONS[0]}]},
         "functions"),
        ({"functions": FUNCTIONS, "tool_choice": "auto"}, "tool_choice"),
        ({"functions": FUNCTIONS, "function_call": "always"}, "function_call"),
        ({"functions": FUNCTIONS, "function_call": {"name": "x"}}, "function_call"),
        ({"functions": FUNCTIONS, "function_call": {"name": 5}}, "function_call"),
        ({"functions": [FUNCTIONS[0], FUNCTIONS[0]]}, "functions[1].name"),
        ({"functions": [{"name": "a b"}]}, "functions[0].name"),
        ({"function_call": {"name": "get_time"}}, "function_call"),
        ({"messages": [{"role": "function", "content": "7"}]}, "messages[0].name"),
        ({"messages": [{**USER[0], "function_call": {"name": "f", "arguments": "{}"}}]},
         "messages[0].function_call"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f", "arguments": "["}}]},
         "messages[0].function_call.arguments"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_what_cannot_be_meant(tool_server: Server, fields: dict[str, Any], param: str) -> None:
    body = {"model": "fake", "messages": USER, **fields}
    answer = tool_server.post("/v1/chat/completions", body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
