"""Anthropic's own client: messages, streams, tools, structured output, counts, errors."""

from __future__ import annotations

from typing import Any

import anthropic
from checks import HI, KEY, MODEL, TOKENS, TOOL, URL, Weekend, attempt, booked

FUNCTION: Any = TOOL["function"]
TOOLS: list[Any] = [
    {
        "name": FUNCTION["name"],
        "description": FUNCTION["description"],
        "input_schema": FUNCTION["parameters"],
    }
]
FORCED: dict[str, Any] = {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "book_trip"}}


client = anthropic.Anthropic(base_url=URL.removesuffix("/v1"), api_key=KEY, max_retries=0)


def asked(**fields: Any) -> dict[str, Any]:
    """The client has no temperature any more; the server has."""
    greedy = {"temperature": 0}
    return {"model": MODEL, "max_tokens": TOKENS, "messages": HI, "extra_body": greedy, **fields}


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def two_turns() -> None:
    said = client.messages.create(**asked(system="Be brief."))
    assert text_of(said)
    again = [*HI, {"role": "assistant", "content": said.content}, *HI]
    assert text_of(client.messages.create(**asked(messages=again)))


def streams() -> None:
    whole = client.messages.create(**asked())
    with client.messages.stream(**asked()) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == text_of(whole) == text_of(final)
    assert final.usage.output_tokens == whole.usage.output_tokens


def tools() -> None:
    said = client.messages.create(**asked(max_tokens=100, **FORCED))
    (use,) = [block for block in said.content if block.type == "tool_use"]
    booked(use.input)
    assert said.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "booked"}
    turns = [
        *HI,
        {"role": "assistant", "content": said.content},
        {"role": "user", "content": [result]},
    ]
    assert client.messages.create(**asked(messages=turns, tools=TOOLS)).content
    with client.messages.stream(**asked(max_tokens=100, **FORCED)) as stream:
        final = stream.get_final_message()
    booked(next(block.input for block in final.content if block.type == "tool_use"))


def structured() -> None:
    said = client.messages.parse(**asked(max_tokens=200), output_format=Weekend)
    assert isinstance(said.parsed_output, Weekend)


def counts() -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=HI)
    usage = client.messages.create(**asked()).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def hints() -> None:
    block = {"type": "text", "text": "import os", "cache_control": {"type": "ephemeral"}}
    raw = client.messages.with_raw_response.create(
        **asked(
            messages=[{"role": "user", "content": [block]}],
            metadata={"user_id": "someone"},
            thinking={"type": "adaptive"},
            service_tier="auto",
        )
    )
    assert "cache_control" in raw.headers["x-penstock-ignored"]


def errors() -> None:
    try:
        client.messages.create(**asked(model="claude"))
    except anthropic.NotFoundError:
        return
    raise AssertionError("no error")


attempt("two turns", two_turns)
attempt("stream", streams)
attempt("tools, two turns, streamed", tools)
attempt("structured output", structured)
attempt("tokens are counted as they are computed", counts)
attempt("hints, and the header that names them", hints)
attempt("an error is one of the client's own", errors)
