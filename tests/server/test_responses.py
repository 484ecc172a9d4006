"""``/v1/responses`` with OpenAI's own client, and that it says what the chat endpoint says."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from support.http_client import Server
from support.waiting import PATIENCE_S, until

HI: list[Any] = [{"role": "user", "content": "Hi"}]


def chat_text(server: Server, messages: list[Any], count: int) -> str:
    answer = server.client().chat.completions.create(
        model="fake", messages=messages, max_tokens=count
    )
    text = answer.choices[0].message.content
    assert text is not None
    return text


def test_a_response(server: Server) -> None:
    answer = server.client().responses.create(
        model="fake",
        input="Hi",
        instructions="Be brief.",
        max_output_tokens=12,
        metadata={"a": "b"},
    )
    expected = chat_text(server, [{"role": "system", "content": "Be brief."}, *HI], 12)
    assert answer.output_text == expected
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.metadata == {"a": "b"}
    assert answer.usage is not None
    assert answer.usage.output_tokens == 12
    assert answer.usage.total_tokens == answer.usage.input_tokens + 12


def test_one_that_stops_by_itself(server: Server) -> None:
    text = chat_text(server, HI, 40)
    stop = text[20:23]
    answer = server.client().responses.create(
        model="fake", input="Hi", max_output_tokens=40, extra_body={"stop": stop}
    )
    assert answer.output_text == text[: text.index(stop)]
    assert answer.status == "completed"
    assert answer.incomplete_details is None


def test_an_answer_can_be_sent_back_as_history(server: Server) -> None:
    client = server.client()
    first = client.responses.create(model="fake", input="Hi", max_output_tokens=5)
    said: Any = first.output[0].model_dump()
    again: Any = [*HI, said, {"type": "message", **HI[0]}]
    second = client.responses.create(model="fake", input=again, max_output_tokens=9)
    history = [*HI, {"role": "assistant", "content": first.output_text}, *HI]
    assert second.output_text == chat_text(server, history, 9)


@pytest.mark.parametrize("logprobs", [False, True])
def test_a_stream_is_the_whole_answer_in_order(slow_server: Server, logprobs: bool) -> None:
    fields: dict[str, Any] = {"model": "fake", "input": "Hi", "max_output_tokens": 20}
    if logprobs:
        fields |= {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = slow_server.client().responses.create(**fields)
    events: list[Any] = list(slow_server.client().responses.create(**fields, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    names = [event.type.removeprefix("response.") for event in events]
    opening = ["created", "in_progress", "output_item.added", "content_part.added"]
    closing = ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    deltas = events[4:-4]
    assert names == [*opening, *["output_text.delta"] * len(deltas), *closing]
    assert len(deltas) > 1  # a busy machine joins steps
    assert "".join(event.delta for event in deltas) == whole.output_text
    assert events[-4].text == whole.output_text
    final = events[-1].response
    assert final.output_text == whole.output_text
    assert final.usage == whole.usage
    assert final.id == events[0].response.id
    content: Any = whole.output[0].content[0]  # type: ignore[union-attr]
    streamed = [entry for event in deltas for entry in event.logprobs]
    assert [entry.token for entry in streamed] == [entry.token for entry in content.logprobs]
    assert len(streamed) == (20 if logprobs else 0)


def test_an_engine_that_fails_is_an_error_event(server: Server) -> None:
    body = {"model": "fake", "input": "Hi", "stream": True, "cache_salt": "fail"}
    # The first tokens are told before the failure, but by a machine that is too busy.
    for _ in range(50):
        answer = server.post("/v1/responses", body)
        if answer.status_code == 200:
            break
        assert answer.json()["error"]["code"] == "generation_failed"
    text = answer.text
    events = [json.loads(part.partition("data: ")[2]) for part in text.split("\n\n") if part]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "error"
    assert events[-1]["code"] == "generation_failed"
    assert "not numbers" in events[-1]["message"]
    until(lambda: not server.metric("num_requests_running"), PATIENCE_S, "ended")


def test_many_at_once(server: Server) -> None:
    async def one(client: openai.AsyncOpenAI, i: int) -> str:
        text = ""
        stream = await client.responses.create(
            model="fake", input=str(i), max_output_tokens=15, stream=True
        )
        async for event in stream:
            if event.type == "response.output_text.delta":
                text += event.delta
        return text

    async def main() -> list[str]:
        async with server.async_client() as client:
            return await asyncio.gather(*(one(client, i) for i in range(10)))

    for i, text in enumerate(asyncio.run(main())):
        assert text == chat_text(server, [{"role": "user", "content": str(i)}], 15)
