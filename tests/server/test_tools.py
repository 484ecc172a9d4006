"""Calls of tools and reasoning, as OpenAI's own client sees them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.http_client import Server

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Žilina"}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
USER = [{"role": "user", "content": "a"}]


def tool(name: str = "get_weather", **fields: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": schema, **fields}}


TOOLS = [tool(), tool("get_time")]


def ask(server: Server, say: str, stream: bool = False, **fields: Any) -> Any:
    extra = {"cache_salt": f"say {say}", **fields.pop("extra_body", {})}
    asked: dict[str, Any] = {"model": "fake", "messages": USER, "tools": TOOLS, **fields}
    return server.client().chat.completions.create(stream=stream, extra_body=extra, **asked)


def joined(chunks: Any) -> dict[str, Any]:
    """A streamed choice 0 in the shape of a message, with its finish reason."""
    answer: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "finish_reason": None}
    for chunk in chunks:
        for choice in chunk.choices:
            answer["content"] += choice.delta.content or ""
            answer["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
            for call in choice.delta.tool_calls or []:
                if call.id is not None:
                    assert call.index == len(answer["calls"])
                    assert call.type == "function"
                    answer["calls"].append([call.function.name, ""])
                answer["calls"][call.index][1] += call.function.arguments
            answer["finish_reason"] = choice.finish_reason
    return answer


def whole(answer: Any) -> dict[str, Any]:
    choice = answer.choices[0]
    return {
        "content": choice.message.content or "",
        "reasoning": getattr(choice.message, "reasoning_content", None) or "",
        "calls": [[c.function.name, c.function.arguments] for c in choice.message.tool_calls or []],
        "finish_reason": choice.finish_reason,
    }


WEATHER = ["get_weather", '{"city": "Žilina"}']


@pytest.mark.parametrize(
    ("say", "fields", "expected"),
    [
        (f"Well.\n{CALL}\n{TIME}", {}, ("Well.", "", [WEATHER, ["get_time", "{}"]], "tool_calls")),
        (f"<think>Hm.\n</think>\n\n{CALL}", {}, ("", "Hm.", [WEATHER], "tool_calls")),
        (f"{CALL}\n{TIME}", {"parallel_tool_calls": False}, ("", "", [WEATHER], "tool_calls")),
        (CALL, {"tool_choice": "none"}, (CALL, "", [], "stop")),
        (CALL, {"tools": []}, (CALL, "", [], "stop")),
        (CALL.replace("weather", "x"), {}, (CALL.replace("weather", "x"), "", [], "stop")),
        (
            "Hm.</think>Yes.",
            {"extra_body": {"chat_template_kwargs": {"thinking": True}}},
            ("Yes.", "Hm.", [], "stop"),
        ),
        ("<think>Hm.</think>Yes.", {"max_tokens": 9}, ("", "Hm", [], "length")),
        (
            f"{CALL} {TIME}",
            {"max_tokens": len(CALL.encode()) + 4},
            ("<to", "", [WEATHER], "length"),
        ),
    ],
    ids=str,
)
def test_the_same_whole_and_streamed(
    tool_server: Server, say: str, fields: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    names = ("content", "reasoning", "calls", "finish_reason")
    wanted = dict(zip(names, expected, strict=True))
    assert whole(ask(tool_server, say, **fields)) == wanted
    assert joined(ask(tool_server, say, stream=True, **fields)) == wanted


def test_arguments_are_streamed_as_they_are_written(tool_server: Server) -> None:
    chunks = list(ask(tool_server, f"Well. {CALL}", stream=True))
    calls = [c.choices[0].delta.tool_calls[0] for c in chunks if c.choices[0].delta.tool_calls]
    assert calls[0].function.name == "get_weather"
    assert [call.id is not None for call in calls] == [True] + [False] * (len(calls) - 1)
    # The core says a byte a step; steps may be joined where the machine is busy.
    assert len(calls) > 3
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_logprobs_cover_every_token_of_an_answer_with_calls(tool_server: Server) -> None:
    say = f"<think>Hm.</think> Well. {TIME}"
    chunks = ask(tool_server, say, stream=True, logprobs=True)
    reported = [
        position.token
        for chunk in chunks
        if chunk.choices[0].logprobs is not None
        for position in chunk.choices[0].logprobs.content
    ]
    assert "".join(reported[: len(say)]) == say


def test_a_conversation_with_calls(tool_server: Server) -> None:
    first = ask(tool_server, f"<think>Hm.</think>{CALL}")
    message = first.choices[0].message
    assert message.content is None
    call = message.tool_calls[0]
    history: list[Any] = [*USER, message, {"role": "tool", "tool_call_id": call.id, "content": "7"}]
    answer = ask(tool_server, "It is 7.", messages=history)
    assert whole(answer)["content"] == "It is 7."
    shown = "".join(json.dumps(t, ensure_ascii=False) for t in TOOLS)
    turns = [
        "user\na",
        'assistant\n<think>Hm.</think><tool_call>{"name": "get_weather", "arguments": '
        f'{{"city": "Žilina"}}}}</tool_call>{call.id}',
        f"tool\n7{call.id}",
    ]
    # Of each turn the two marks are one token each, all else is a token a byte.
    prompt = len(shown) + sum(len(turn.encode()) + 3 for turn in turns) + len("assistant\n") + 1
    assert answer.usage.prompt_tokens == prompt


def test_special_tokens_in_tools_and_arguments_are_text(tool_server: Server) -> None:
    def tokens(text: str) -> int:
        call = {"name": "f", "arguments": json.dumps({"a": text})}
        calls = [{"id": "1", "type": "function", "function": call}]
        history = [*USER, {"role": "assistant", "content": None, "tool_calls": calls}]
        tools = [tool(description=text)]
        count: int = ask(tool_server, "x", messages=history, tools=tools).usage.prompt_tokens
        return count

    assert tokens("<|im_end|>") == tokens("_" * len("<|im_end|>"))


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": "f"}, "tools", "array"),
        ({"tools": [5]}, "tools[0]", "object"),
        ({"tools": [{"type": "function"}]}, "tools[0]", "function"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type", "function"),
        ({"tools": [{**tool(), "extra": 1}]}, "tools[0]", "extra"),
        ({"tools": [tool("")]}, "tools[0].function.name", "letters"),
        ({"tools": [tool("a b")]}, "tools[0].function.name", "letters"),
        ({"tools": [tool("a" * 65)]}, "tools[0].function.name", "64"),
        ({"tools": [tool(), tool()]}, "tools[1].function.name", "another"),
        ({"tools": [tool(parameters=[])]}, "tools[0]", "parameters"),
        ({"tools": [tool(parameters={"type": "array"})]}, "tools[0].function.parameters.type", ""),
        (
            {"tools": [tool(parameters={"properties": {"a": 5}})]},
            "tools[0].function.parameters.properties.a",
            "schema",
        ),
        (
            {"tools": [tool(parameters={"required": "a"})]},
            "tools[0].function.parameters.required",
            "names",
        ),
        ({"tools": [tool(f"f{i}") for i in range(1500)]}, "tools", "1500"),
        ({"tool_choice": "required", "tools": []}, "tool_choice", "needs tools"),
        ({"tool_choice": 5}, "tool_choice", "str | object"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            "none of the tools",
        ),
        ({"tool_choice": "x"}, "tool_choice", "must be"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "must be"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "bool"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_requests_that_cannot_be_honoured(
    tool_server: Server, fields: dict[str, Any], param: str, words: str
) -> None:
    body = {"model": "fake", "messages": USER, "tools": TOOLS, **fields}
    for stream in (False, True):
        response = tool_server.post("/v1/chat/completions", {**body, "stream": stream})
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert error["param"] == param
        assert words in error["message"]
        assert len(error["message"]) < 500


@pytest.mark.parametrize(
    ("arguments", "words"),
    [("{", "not JSON"), ("[]", "object"), ('{"a": ' + "[" * 150 + "]" * 150 + "}", "deep")],
)
def test_arguments_in_messages(tool_server: Server, arguments: str, words: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    body = {"model": "fake", "messages": messages}
    error = tool_server.post("/v1/chat/completions", body).json()["error"]
    assert error["param"] == "messages[0].tool_calls[0].function.arguments"
    assert words in error["message"]
    user = {"model": "fake", "messages": [{**USER[0], "tool_calls": messages[0]["tool_calls"]}]}
    error = tool_server.post("/v1/chat/completions", user).json()["error"]
    assert error["param"] == "messages[0].tool_calls"


def test_deep_schemas_are_refused(tool_server: Server) -> None:
    deep = b'{"a":' * 5000 + b"{}" + b"}" * 5000
    body = (
        b'{"model": "fake", "messages": [{"role": "user", "content": "a"}], "tools": [{"type": '
        b'"function", "function": {"name": "f", "parameters": ' + deep + b"}}]}"
    )
    assert tool_server.post("/v1/chat/completions", body).status_code == 400


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def test_allowed_tools_are_those_of_the_request(tool_server: Server) -> None:
    """The others are as if they were not there: neither shown to the model nor called."""
    for mode in ("auto", "required"):
        some = ask(tool_server, TIME, tool_choice=allowed(mode, "get_time"))
        choice = "auto" if mode == "auto" else "required"
        alone = ask(tool_server, TIME, tools=[tool("get_time")], tool_choice=choice)
        assert whole(some) == whole(alone)
        assert whole(some)["calls"] == [["get_time", "{}"]]
        assert some.usage == alone.usage
    assert whole(ask(tool_server, CALL, tool_choice=allowed("auto", "get_time")))["calls"] == []
    both = allowed("auto", "get_time", "get_weather")
    assert whole(ask(tool_server, CALL, tool_choice=both))["calls"] == [WEATHER]


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        (allowed("auto", "x"), "tool_choice"),
        (allowed("auto"), "tool_choice.allowed_tools"),
        (allowed("sometimes", "get_time"), "tool_choice.allowed_tools"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
        ({**allowed("auto", "get_time"), "mode": "auto"}, "tool_choice.allowed_tools"),
    ],
)
def test_allowed_tools_that_cannot_be(
    tool_server: Server, choice: dict[str, Any], param: str
) -> None:
    body = {"model": "fake", "messages": USER, "tools": TOOLS, "tool_choice": choice}
    answer = tool_server.post("/v1/chat/completions", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_format_says_nothing_where_the_answer_is_calls(tool_server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    one = {"type": "function", "function": {"name": "get_time"}}
    for choice in ("required", one):
        plain = ask(tool_server, TIME, tool_choice=choice)
        both = ask(tool_server, TIME, tool_choice=choice, response_format=form)
        assert whole(both) == whole(plain)
    body = {"model": "fake", "messages": USER, "tools": TOOLS, "tool_choice": "required"}
    form["json_schema"]["schema"] = {"type": "nonsense"}  # type: ignore[index]
    for fields in ({"response_format": form}, {"guided_regex": "a+"}):
        answer = tool_server.post("/v1/chat/completions", {**body, **fields})
        assert answer.status_code == 400


def test_a_named_tool_is_called_once(tool_server: Server) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    twice = ask(tool_server, f"{CALL}\n{CALL}", tool_choice=named)
    assert whole(twice)["calls"] == [WEATHER]
    assert joined(ask(tool_server, f"{CALL}\n{CALL}", tool_choice=named, stream=True)) == whole(
        twice
    )
    again = ask(tool_server, f"{CALL}\n{CALL}", tool_choice="required")
    assert whole(again)["calls"] == [WEATHER, WEATHER]
