"""``/v1/messages`` with Anthropic's own client, and that it says what the chat endpoint says."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from support.http_client import Server

HI: list[Any] = [{"role": "user", "content": "Hi"}]
CALL = {"type": "tool_use", "id": "a", "name": "b", "input": {}}


def client_of(server: Server) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def chat_text(server: Server, messages: list[Any], count: int) -> str:
    answer = server.client().chat.completions.create(
        model="fake", messages=messages, max_tokens=count
    )
    text = answer.choices[0].message.content
    assert text is not None
    return text


def test_a_message(server: Server) -> None:
    answer = client_of(server).messages.create(
        model="fake", messages=HI, system="Be brief.", max_tokens=12
    )
    (block,) = answer.content
    assert block.type == "text"
    assert block.text == chat_text(server, [{"role": "system", "content": "Be brief."}, *HI], 12)
    assert (answer.stop_reason, answer.stop_sequence) == ("max_tokens", None)
    assert answer.usage.output_tokens == 12
    assert answer.model == "fake"


def test_a_stop_sequence(server: Server) -> None:
    text = chat_text(server, HI, 40)
    stop = text[20:23]
    answer = client_of(server).messages.create(
        model="fake", messages=HI, max_tokens=40, stop_sequences=[stop]
    )
    (block,) = answer.content
    assert block.type == "text"
    assert block.text == text[: text.index(stop)]
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)


def test_a_stream_is_the_message(server: Server) -> None:
    client = client_of(server)
    whole = client.messages.create(model="fake", messages=HI, max_tokens=20)
    with client.messages.stream(model="fake", messages=HI, max_tokens=20) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 1
    (block,) = whole.content
    assert block.type == "text"
    assert "".join(pieces) == block.text
    (told,) = final.content
    assert told.type == "text"
    assert told.text == block.text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_events_in_their_order(server: Server) -> None:
    events = list(
        client_of(server).messages.create(model="fake", messages=HI, max_tokens=3, stream=True)
    )
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_neighbours_are_one_message(server: Server) -> None:
    """Blocks and messages of one role, next to each other, are one text for the template."""
    parts: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"},
    ]
    answer = client_of(server).messages.create(model="fake", messages=parts, max_tokens=9)
    (block,) = answer.content
    assert block.type == "text"
    assert block.text == chat_text(server, [{"role": "user", "content": "a\nb\nc"}], 9)


def test_an_answer_is_continued(server: Server) -> None:
    begun: list[Any] = [*HI, {"role": "assistant", "content": "Well"}]
    answer = client_of(server).messages.create(model="fake", messages=begun, max_tokens=9)
    expected = server.client().chat.completions.create(
        model="fake", messages=begun, max_tokens=9, extra_body={"continue_final_message": True}
    )
    (block,) = answer.content
    assert block.type == "text"
    assert block.text == expected.choices[0].message.content


def test_tokens_are_counted_as_they_are_computed(server: Server) -> None:
    client = client_of(server)
    counted = client.messages.count_tokens(model="fake", messages=HI, system="Be brief.")
    answer = client.messages.create(model="fake", messages=HI, system="Be brief.", max_tokens=1)
    usage = answer.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_fields_that_only_advise_are_named(server: Server) -> None:
    given = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    raw = client_of(server).messages.with_raw_response.create(
        model="fake", messages=[{"role": "user", "content": [given]}], max_tokens=2
    )
    assert "cache_control" in raw.headers["x-penstock-ignored"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"messages": []}, "messages: must hold at least one message"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0] is of type 'image'; this model reads text only",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "a"}]}]},
            "does not belong here",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text: is required",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "id": "b"}]}]},
            "messages[0].content[0].id: does not belong",
        ),
        (
            {"messages": [*HI, {"role": "assistant", "content": [CALL]}]},
            "must end with a text to continue",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema: is required"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
        ({"frobnicate": 1}, "unknown field 'frobnicate'"),
        ({"model": "claude"}, "the model 'claude' does not exist here"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused(server: Server, fields: dict[str, Any], words: str, stream: bool) -> None:
    body: dict[str, Any] = {"model": "fake", "messages": HI, "max_tokens": 5, **fields}
    answer = server.post("/v1/messages", body | {"stream": stream})
    assert answer.status_code in (400, 404), answer.text
    told = answer.json()
    assert told["type"] == "error"
    assert words in told["error"]["message"]
    kind = "not_found_error" if answer.status_code == 404 else "invalid_request_error"
    assert told["error"]["type"] == kind


def test_the_client_raises_what_it_is_for(server: Server) -> None:
    with pytest.raises(anthropic.NotFoundError, match="does not exist here"):
        client_of(server).messages.create(model="claude", messages=HI, max_tokens=5)
