"""A stream of Anthropic's dialect that begins again."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.router.resume.messages import MessageStream
from penstock.router.resume.parts import DivergedError

Event = dict[str, Any]


def stream(said: str, arguments: str, cuts: list[int], run: int) -> list[Event]:
    """The events of a text and a call, cut at places, with the names of a run."""

    def pieces(text: str) -> list[str]:
        places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
        return [text[a:b] for a, b in pairwise(places)]

    def grown(index: int, kind: str, name: str, text: str) -> list[Event]:
        return [
            {"type": "content_block_delta", "index": index, "delta": {"type": kind, name: piece}}
            for piece in pieces(text)
        ]

    usage = {"input_tokens": 3, "cache_read_input_tokens": run}
    message = {"id": f"msg_{run}", "type": "message", "content": [], "usage": usage}
    call = {"type": "tool_use", "id": f"toolu_{run}", "name": "f", "input": {}}
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *grown(0, "text_delta", "text", said),
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": call},
        *grown(1, "input_json_delta", "partial_json", arguments),
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": usage},
        {"type": "message_stop"},
    ]


def encoded(event: Event) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def merged(events: list[Event]) -> list[Any]:
    """The events with texts put together, and without what each run has of its own."""
    found: list[Any] = []
    for event in events:
        text = json.loads(json.dumps(event))
        for holder in (text, text.get("message", {}), text.get("content_block", {})):
            holder.pop("usage", None)
            holder.pop("id", None)
        if text["type"] == "content_block_delta" and found[-1]["type"] == text["type"]:
            for name, value in text["delta"].items():
                if name != "type":
                    found[-1]["delta"][name] += value
        else:
            found.append(text)
    return found


TEXT = st.text(min_size=1, max_size=15)
CUTS = st.lists(st.integers(0, 15), max_size=5)


@given(TEXT, TEXT, st.lists(CUTS, min_size=3, max_size=3), st.data())
def test_each_part_comes_once_under_the_first_names(
    said: str, arguments: str, cuts: list[list[int]], data: st.DataObject
) -> None:
    runs = [stream(said, arguments, cuts[run], run) for run in range(3)]
    client = runs[0][: data.draw(st.integers(0, len(runs[0]) - 1))]
    delivered = MessageStream()
    for event in client:
        delivered.add(encoded(event))
    for number in (1, 2):
        delivered.begin()
        run = runs[number]
        end = len(run) if number == 2 else data.draw(st.integers(0, len(run) - 1))
        for event in run[:end]:
            rest = delivered.rest(json.dumps(event).encode())
            if rest is not None:
                kind, line = rest.split(b"\n")[:2]
                client = [*client, json.loads(line.removeprefix(b"data: "))]
                assert kind == f"event: {client[-1]['type']}".encode()
                assert delivered.is_over(rest) == (event is runs[2][-1])
    assert merged(client) == merged(stream(said, arguments, [], 0))
    for kind in ("msg", "toolu"):
        text = json.dumps(client)
        assert sum(f'"{kind}_{run}"' in text for run in range(3)) == 1


def test_another_answer_is_noticed() -> None:
    delivered = MessageStream()
    for event in stream("one two", "{}", [2], 0)[:4]:
        delivered.add(encoded(event))
    delivered.begin()
    with pytest.raises(DivergedError, match="answered differently"):
        [delivered.rest(json.dumps(event).encode()) for event in stream("one three", "{}", [3], 1)]


def test_an_error_is_passed_on() -> None:
    delivered = MessageStream()
    delivered.begin()
    error = {"type": "error", "error": {"type": "api_error", "message": "no"}}
    assert delivered.rest(json.dumps(error).encode()) is not None


@pytest.mark.parametrize("data", [b"{}", b"[", b'{"type":3}', b'{"type":"content_block_delta"}'])
def test_what_is_no_event(data: bytes) -> None:
    with pytest.raises(DivergedError, match="is not what a server"):
        MessageStream().rest(data)
