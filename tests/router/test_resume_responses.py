"""A stream of the Responses API that begins again."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.router.resume.parts import DivergedError
from penstock.router.resume.responses import ResponseStream

Event = dict[str, Any]


def stream(said: str, arguments: str, cuts: list[int], run: int) -> list[Event]:
    """The events of a message and a call, their texts cut at places, with the names of a run."""
    events: list[Event] = []

    def add(kind: str, **fields: Any) -> None:
        events.append({"type": f"response.{kind}", "sequence_number": len(events), **fields})

    def pieces(text: str) -> list[str]:
        places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
        return [text[a:b] for a, b in pairwise(places)]

    whole = {"id": f"resp_{run}", "created_at": 100 + run, "output": []}
    message: Event = {"type": "message", "id": f"msg_{run}", "content": []}
    call = {"type": "function_call", "id": f"fc_{run}", "call_id": f"call_{run}", "arguments": ""}
    add("created", response=whole)
    add("in_progress", response=whole)
    add("output_item.added", output_index=0, item=message)
    for piece in pieces(said):
        place = {"item_id": message["id"], "output_index": 0, "content_index": 0}
        logs = [{"token": each, "logprob": -0.25} for each in piece]
        add("output_text.delta", **place, delta=piece, logprobs=logs)
    add("output_text.done", item_id=message["id"], output_index=0, text=said)
    message = {**message, "content": [{"text": said}]}
    add("output_item.done", output_index=0, item=message)
    add("output_item.added", output_index=1, item=call)
    for piece in pieces(arguments):
        add("function_call_arguments.delta", item_id=call["id"], output_index=1, delta=piece)
    call = {**call, "arguments": arguments}
    add("output_item.done", output_index=1, item=call)
    usage = {"input_tokens": 3, "cached": run}
    add("completed", response={**whole, "output": [message, call], "usage": usage})
    return events


def encoded(event: Event) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def merged(events: list[Event]) -> list[Event]:
    """The events with texts put together, and without numbers and counts."""
    found: list[Event] = []
    for event in events:
        event = {key: value for key, value in event.items() if key != "sequence_number"}
        if event["type"] == "response.completed":
            event["response"] = {**event["response"], "usage": None}
        if event["type"].endswith(".delta") and found and found[-1]["type"] == event["type"]:
            last = found[-1]
            last["delta"] += event["delta"]
            if "logprobs" in event:
                last["logprobs"] = last["logprobs"] + event["logprobs"]
        else:
            found.append(dict(event))
    return found


TEXT = st.text(min_size=1, max_size=15)
CUTS = st.lists(st.integers(0, 15), max_size=5)


@given(TEXT, TEXT, st.lists(CUTS, min_size=3, max_size=3), st.data())
def test_each_part_comes_once_under_the_first_names(
    said: str, arguments: str, cuts: list[list[int]], data: st.DataObject
) -> None:
    runs = [stream(said, arguments, cuts[run], run) for run in range(3)]
    client = runs[0][: data.draw(st.integers(0, len(runs[0]) - 1))]
    delivered = ResponseStream()
    for event in client:
        delivered.add(encoded(event))
    names: int | None = 0 if client else None  # the run whose names the client has
    for number in (1, 2):
        delivered.begin()
        run = runs[number]
        end = len(run) if number == 2 else data.draw(st.integers(0, len(run) - 1))
        for event in run[:end]:
            rest = delivered.rest(json.dumps(event).encode())
            if rest is not None:
                names = number if names is None else names
                line = rest.split(b"\n")[1]
                client = [*client, json.loads(line.removeprefix(b"data: "))]
                assert delivered.is_over(rest) == (event is runs[2][-1])
    assert [event["sequence_number"] for event in client] == list(range(len(client)))
    assert names is not None
    first = {event["response"]["id"] for event in client if "response" in event}
    assert first == {f"resp_{names}"}
    # Names of items are those of the run that began them.
    for kind in ("msg", "fc", "call"):
        text = json.dumps(client)
        assert sum(f'"{kind}_{run}"' in text for run in range(3)) == 1
    shown = json.dumps(merged(client))
    expected = json.dumps(merged(stream(said, arguments, [], 0)))
    for run in range(3):
        for kind in ("resp", "msg", "fc", "call"):
            shown = shown.replace(f'"{kind}_{run}"', f'"{kind}_0"')
        shown = shown.replace(f'"created_at": {100 + run}', '"created_at": 100')
    assert shown == expected


def test_another_answer_is_noticed() -> None:
    delivered = ResponseStream()
    for event in stream("one two", "{}", [2], 0)[:6]:
        delivered.add(encoded(event))
    delivered.begin()
    other = stream("one three", "{}", [3], 1)
    with pytest.raises(DivergedError, match="answered differently"):
        [delivered.rest(json.dumps(event).encode()) for event in other]


@pytest.mark.parametrize("data", [b"{}", b"[", b'{"type":3}', b'{"type":"response.created"}'])
def test_what_is_no_event(data: bytes) -> None:
    with pytest.raises(DivergedError, match="is not what a server"):
        ResponseStream().rest(data)
