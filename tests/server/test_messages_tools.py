"""Calls, reasoning and formats in ``/v1/messages``, as Anthropic's own client sees them."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from support.http_client import Server

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Žilina"}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: list[Any] = [
    {"name": "get_weather", "description": "Tells the weather.", "input_schema": SCHEMA},
    {"name": "get_time", "input_schema": {"type": "object", "properties": {}}},
]
HI: list[Any] = [{"role": "user", "content": "a"}]


def client_of(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def asked(say: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "fake", "messages": HI, "tools": TOOLS, "max_tokens": 180}
    return {**body, **fields, "extra_body": {"cache_salt": say}}


def shape(content: Any) -> list[tuple[str, Any]]:
    shapes: list[tuple[str, Any]] = []
    for block in content:
        if block.type == "tool_use":
            shapes.append((block.name, block.input))
        else:
            shapes.append((block.type, block.text if block.type == "text" else block.thinking))
    return shapes


@pytest.mark.parametrize(
    ("say", "shapes", "reason"),
    [
        (
            f"<think>Hm.</think>Well. {CALL}\n{TIME}",
            [
                ("thinking", "Hm."),
                ("text", "Well."),
                ("get_weather", {"city": "Žilina"}),
                ("get_time", {}),
            ],
            "tool_use",
        ),
        (CALL, [("get_weather", {"city": "Žilina"})], "tool_use"),
        ("<think>Hm.</think>", [("thinking", "Hm.")], "end_turn"),
        ("", [("text", "")], "end_turn"),
    ],
)
def test_the_same_whole_and_streamed(
    tool_server: Server, say: str, shapes: list[tuple[str, Any]], reason: str
) -> None:
    client = client_of(tool_server)
    whole = client.messages.create(**asked(f"say {say}"))
    assert shape(whole.content) == shapes
    assert whole.stop_reason == reason
    with client.messages.stream(**asked(f"say {say}")) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert shape(final.content) == shapes
    assert final.stop_reason == reason
    assert kinds.count("content_block_start") == len(shapes)
    assert kinds.count("content_block_stop") == len(shapes)


def test_a_result_is_shown_to_the_model(tool_server: Server) -> None:
    """The prompt is that of the same conversation in OpenAI's dialect."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Brno"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [{"type": "text", "text": "Rain."}],
    }
    thought = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    said: list[Any] = [
        *HI,
        {"role": "assistant", "content": [thought, {"type": "text", "text": "Well."}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    functions = [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                **({"description": tool["description"]} if "description" in tool else {}),
                "parameters": tool["input_schema"],
            },
        }
        for tool in TOOLS
    ]
    call = {
        "id": "toolu_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": json.dumps({"city": "Brno"})},
    }
    same: list[Any] = [
        *HI,
        {
            "role": "assistant",
            "content": "Well.",
            "reasoning_content": "Hm.",
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "Rain."},
        {"role": "user", "content": "So?"},
    ]

    def keys(path: str, body: Any) -> Any:
        answer = tool_server.admin(f"cache/keys?path={path}", body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    theirs = keys("/v1/chat/completions", {"messages": same, "tools": functions})
    ours = keys("/v1/messages", {"messages": said, "tools": TOOLS, "max_tokens": 5})
    assert ours == theirs
    assert ours["prompt_tokens"] > 0


def test_no_call_may_be_made(tool_server: Server) -> None:
    answer = client_of(tool_server).messages.create(
        **asked(f"say {CALL}", tool_choice={"type": "none"})
    )
    assert [block.type for block in answer.content] == ["text"]
    assert answer.stop_reason == "end_turn"


def test_a_call_that_breaks_off(tool_server: Server) -> None:
    """A stream has announced it; what came of its arguments is no JSON."""
    with client_of(tool_server).messages.stream(**asked(f"say {CALL}", max_tokens=45)) as stream:
        kinds = [event.type for event in stream]
    assert kinds[-1] == "message_stop"


def test_a_schema_that_cannot_be_used_is_named(tool_server: Server) -> None:
    body = {
        "messages": HI,
        "max_tokens": 5,
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "robot"}}},
    }
    answer = tool_server.post("/v1/messages", body)
    assert answer.status_code == 400
    assert "output_config.format.schema" in answer.json()["error"]["message"]
    tools = [{"name": "a", "input_schema": {"type": "array"}}]
    answer = tool_server.post("/v1/messages", {"messages": HI, "max_tokens": 5, "tools": tools})
    assert "tools[0].input_schema.type" in answer.json()["error"]["message"]
