"""Tools where the chat template shows none: described to the model, and called all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from support import byte_tokenizer
from support.http_client import Server, running

from penstock.parsing.described_tools import with_described_tools
from penstock.parsing.known_styles import GENERIC

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Žilina"}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
HI = [{"role": "user", "content": "Hi"}]
CALLED = [
    *HI,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Brno"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "Rain."},
]
"""What the client sends after a call."""
WRITTEN = [
    *HI,
    {
        "role": "assistant",
        "content": CALL.replace("Žilina", "Brno"),
    },
    {
        "role": "user",
        "content": "<tool_response>\nget_weather returned:\nRain.\n</tool_response>",
    },
]
"""What the template is given of it."""


@pytest.fixture(scope="module")
def server(tokenizer_folder: Path) -> Iterator[Server]:
    """One whose prompts may be as long as descriptions are in bytes; a step takes 1 ms."""
    with running(tokenizer_folder, 1, max_model_len=4000) as server:
        yield server


def ask(server: Server, say: str, **fields: Any) -> Any:
    asked: dict[str, Any] = {"model": "fake", "messages": HI, "tools": TOOLS, **fields}
    return server.client().chat.completions.create(extra_body={"cache_salt": f"say {say}"}, **asked)


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_calls_whole_and_streamed(server: Server, choice: str) -> None:
    message = ask(server, CALL, tool_choice=choice).choices[0]
    (call,) = message.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Žilina"}')
    assert message.finish_reason == "tool_calls"
    chunks = [chunk.choices[0] for chunk in ask(server, CALL, tool_choice=choice, stream=True)]
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    assert calls[0].function.name == "get_weather"
    assert "".join(each.function.arguments for each in calls) == '{"city": "Žilina"}'
    assert chunks[-1].finish_reason == "tool_calls"


@pytest.mark.parametrize(("parallel", "count"), [(None, 1), (False, 1), (True, 2)])
def test_several_calls_where_they_are_asked_for(
    server: Server, parallel: bool | None, count: int
) -> None:
    asked = {} if parallel is None else {"parallel_tool_calls": parallel}
    answer = ask(server, f"{CALL}\n{CALL}", **asked)
    assert len(answer.choices[0].message.tool_calls) == count


def test_an_answer_in_text(server: Server) -> None:
    choice = ask(server, "It rains.").choices[0]
    assert (choice.message.content, choice.finish_reason) == ("It rains.", "stop")


@pytest.mark.parametrize("tools", [TOOLS, []], ids=["tools", "no tools"])
def test_what_the_model_is_shown(server: Server, tools: list[Any]) -> None:
    def count(messages: list[Any]) -> int:
        body = {"messages": messages, "add_generation_prompt": True}
        found: int = server.http.post("/tokenize", json=body).json()["count"]
        return found

    shown = [dict(each) for each in with_described_tools(WRITTEN, tools, GENERIC, True)]
    for choice in ("auto", "required") if tools else ("auto",):
        answer = ask(server, "x", messages=CALLED, tools=tools, tool_choice=choice)
        assert answer.usage.prompt_tokens == count(shown)
    assert count(CALLED) == count(WRITTEN)


def test_tools_that_may_not_be_called_are_not_described(server: Server) -> None:
    silent = ask(server, "x", tool_choice="none").usage.prompt_tokens
    assert silent == ask(server, "x", tools=[]).usage.prompt_tokens
    assert silent < ask(server, "x").usage.prompt_tokens


@pytest.mark.parametrize(
    ("schema", "strict", "taken"),
    [
        ({"type": "object", "minProperties": -1}, None, False),
        ({"type": "object", "minProperties": -1}, False, True),
        (SCHEMA, None, True),
    ],
)
def test_arguments_are_bound_unless_strict_is_false(
    server: Server, schema: Any, strict: bool | None, taken: bool
) -> None:
    function: dict[str, Any] = {"name": "get_weather", "parameters": schema}
    if strict is not None:
        function["strict"] = strict
    tools = [{"type": "function", "function": function}]
    if taken:
        assert ask(server, "x", tools=tools).choices
    else:
        with pytest.raises(openai.BadRequestError) as refused:
            ask(server, "x", tools=tools)
        assert refused.value.body["param"] == "tools[0].function.parameters"  # type: ignore[index]


@pytest.mark.parametrize("parser", ["none", "hermes"])
def test_a_server_that_takes_no_tools_says_how_it_would(tmp_path: Path, parser: str) -> None:
    folder = byte_tokenizer.write(tmp_path)
    with running(folder, 1, tool_call_parser=parser) as server:
        with pytest.raises(openai.BadRequestError, match="--tool-call-parser generic"):
            ask(server, "x")
        (card,) = server.http.get("/v1/models").json()["data"]
        assert card["tool_style"] is None
        assert "tools" not in card["capabilities"]
