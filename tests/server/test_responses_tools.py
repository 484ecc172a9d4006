"""Calls, reasoning and formats in ``/v1/responses``, as OpenAI's own client sees them."""

from __future__ import annotations

import json
from typing import Any

import pydantic
import pytest
from support.http_client import Server

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Žilina"}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: list[Any] = [
    {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False},
    {"type": "function", "name": "get_time", "parameters": None, "strict": None},
]
HI = {"role": "user", "content": "a"}


def ask(server: Server, say: str, **fields: Any) -> Any:
    asked = {"model": "fake", "input": "a", "tools": TOOLS, **fields}
    return server.client().responses.create(**asked, extra_body={"cache_salt": say})


def shape(items: Any) -> list[tuple[str, str]]:
    shapes = []
    for item in items:
        if item.type == "function_call":
            shapes.append((item.name, item.arguments))
        else:
            shapes.append((item.type, "".join(part.text for part in item.content)))
    return shapes


@pytest.mark.parametrize(
    ("say", "shapes"),
    [
        (
            f"<think>Hm.</think>Well. {CALL}\n{TIME}",
            [
                ("reasoning", "Hm."),
                ("message", "Well."),
                ("get_weather", '{"city": "Žilina"}'),
                ("get_time", "{}"),
            ],
        ),
        (CALL, [("get_weather", '{"city": "Žilina"}')]),
        ("<think>Hm.</think>", [("reasoning", "Hm.")]),
        ("", [("message", "")]),
    ],
)
def test_the_same_whole_and_streamed(
    tool_server: Server, say: str, shapes: list[tuple[str, str]]
) -> None:
    whole = ask(tool_server, f"say {say}")
    assert whole.status == "completed"
    assert shape(whole.output) == shapes
    assert all(item.status == "completed" for item in whole.output)
    events = list(ask(tool_server, f"say {say}", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    final = events[-1].response
    assert shape(final.output) == shapes
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert sorted(done, key=final.output.index) == final.output
    for index, (_, text) in enumerate(shapes):
        mine = [event for event in events if getattr(event, "output_index", None) == index]
        assert "".join(event.delta for event in mine if event.type.endswith(".delta")) == text
        assert {event.item_id for event in mine if hasattr(event, "item_id")} == {
            final.output[index].id
        }
        names = [event.type.removeprefix("response.") for event in mine]
        assert names[0] == "output_item.added"
        assert names[-1] == "output_item.done"


def test_a_conversation_with_calls(tool_server: Server) -> None:
    first = ask(tool_server, f"say <think>Hm.</think>{CALL}")
    call = first.output[1]
    history = [HI, *first.output]
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": "7"})
    answer = ask(tool_server, "say It is 7.", input=history)
    assert answer.output_text == "It is 7."
    chat: Any = [
        HI,
        {
            "role": "assistant",
            "reasoning_content": "Hm.",
            "content": None,
            "tool_calls": [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
            ],
        },
        {"role": "tool", "tool_call_id": call.call_id, "content": "7"},
    ]
    tools: Any = [
        {
            "type": "function",
            "function": {"name": "get_weather", "parameters": SCHEMA, "strict": False},
        },
        {"type": "function", "function": {"name": "get_time"}},
    ]
    same = tool_server.client().chat.completions.create(model="fake", messages=chat, tools=tools)
    assert same.usage is not None
    assert answer.usage.input_tokens == same.usage.prompt_tokens


def test_reasoning_without_an_answer_is_not_lost(tool_server: Server) -> None:
    def tokens(text: str) -> int:
        part = {"type": "reasoning_text", "text": text}
        thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [part]}
        counts = {
            ask(tool_server, "say x", input=[HI, *items]).usage.input_tokens
            for items in ([thought, HI], [HI, thought])
        }
        (count,) = counts
        return int(count)

    assert tokens("abcde") == tokens("a") + 4


class City(pydantic.BaseModel):
    name: str
    people: int


def test_a_parsed_answer(tool_server: Server) -> None:
    answer = tool_server.client().responses.parse(
        model="fake",
        input="a",
        text_format=City,
        extra_body={"cache_salt": 'say {"name": "Žilina", "people": 81000}'},
    )
    assert answer.output_parsed == City(name="Žilina", people=81000)


def test_what_the_engine_is_told(server: Server) -> None:
    def seen(**fields: Any) -> Any:
        body = {"model": "fake", "input": "a", "cache_salt": "tell grammar", **fields}
        response = server.post("/v1/responses", body)
        assert response.status_code == 200, response.text
        assert response.json().get("text") == fields.get("text", {"format": {"type": "text"}})
        return json.loads(response.json()["output"][0]["content"][0]["text"])

    assert seen() is None
    assert seen(text={"format": {"type": "json_object"}}) == {"kind": "json_object", "text": ""}
    named = {"type": "json_schema", "name": "it", "schema": SCHEMA, "strict": True}
    named["description"] = None
    text = json.dumps(SCHEMA)
    assert seen(text={"format": named}) == {"kind": "json_schema", "text": text}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "web_search"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "required"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].name", "another"),
        ({"tools": [{**TOOLS[0], "name": "a b"}]}, "tools[0].name", "letters"),
        (
            {"tools": [{**TOOLS[0], "parameters": {"type": "array"}}]},
            "tools[0].parameters.type",
            "object",
        ),
        ({"tool_choice": "sometimes"}, "tool_choice", "must be"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "none of the tools"),
        ({"tool_choice": "required", "tools": []}, "tool_choice", "needs tools"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "bool"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "xml"),
        ({"text": {"verbosity": 5}}, "text.verbosity", "not supported"),
        ({"text": {"colour": 5}}, "text.colour", "unknown"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id", "required"),
        (
            {"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "["}]},
            "input[0].arguments",
            "not JSON",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "1"}]},
            "input[0].output",
            "required",
        ),
        (
            {
                "input": [
                    {"type": "function_call_output", "call_id": "1"}
                    | {"output": [{"type": "output_text", "text": "a"}]}
                ]
            },
            "input[0].output[0]",
            "does not belong",
        ),
        ({"input": [{**HI, "call_id": "1"}]}, "input[0].call_id", "does not belong"),
        ({"input": [{"role": "user"}]}, "input[0].content", "required"),
        ({"input": [{"content": "a"}]}, "input[0].role", "required"),
        (
            {"input": [{"role": "user", "content": [{"type": "reasoning_text", "text": "a"}]}]},
            "input[0].content[0]",
            "does not belong",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_requests_that_cannot_be_honoured(
    tool_server: Server, fields: dict[str, Any], param: str, words: str
) -> None:
    body = {"model": "fake", "input": "a", "tools": TOOLS, **fields}
    response = tool_server.post("/v1/responses", body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param, error
    assert words in error["message"]


def test_a_format_beside_a_forced_call(tool_server: Server) -> None:
    """What instructor sends: the format is of a message, and there is none."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    body = {
        "model": "fake",
        "input": "a",
        "cache_salt": f"say {CALL}",
        "tools": TOOLS,
        "tool_choice": {"type": "function", "name": "get_weather"},
        "text": {"format": {"type": "json_schema", "name": "it", "schema": schema}},
    }
    answer = tool_server.post("/v1/responses", body)
    assert answer.status_code == 200, answer.text
    (call,) = answer.json()["output"]
    assert (call["type"], call["name"]) == ("function_call", "get_weather")


def test_allowed_tools(tool_server: Server) -> None:
    choice = {"type": "allowed_tools", "mode": "required"}
    choice |= {"tools": [{"type": "function", "name": "get_weather"}]}  # type: ignore[dict-item]
    body = {"model": "fake", "input": "a", "cache_salt": f"say {CALL}", "tools": TOOLS}
    answer = tool_server.post("/v1/responses", {**body, "tool_choice": choice})
    assert answer.status_code == 200, answer.text
    (call,) = answer.json()["output"]
    assert (call["type"], call["name"]) == ("function_call", "get_weather")
    assert answer.json()["tool_choice"] == choice
