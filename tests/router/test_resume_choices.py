"""A stream that begins again: whatever the cut, the client gets each part once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.router.resume.choices import ChoiceStream, parts_of
from penstock.router.resume.framing import EVENTS
from penstock.router.resume.parts import DivergedError

Event = dict[str, Any]


def stream(
    texts: dict[int, str], cuts: dict[int, list[int]], name: str, tools: bool, logprobs: bool
) -> list[Event]:
    """A chat's events: of each choice its role, its text cut at places, a call, and its end."""
    events: list[Event] = []

    def add(index: int, delta: Event, **more: Any) -> None:
        choice = {"index": index, "delta": delta, "finish_reason": None, **more}
        events.append({"id": name, "created": len(name), "object": "chunk", "choices": [choice]})

    for index, text in texts.items():
        add(index, {"role": "assistant", "content": ""})
        at = 0
        for cut in [*sorted({c % (len(text) + 1) for c in cuts[index]} - {0}), len(text)]:
            piece = text[at:cut]
            if not piece:
                continue
            logs = [{"token": c, "logprob": -ord(c) / 7} for c in piece]
            more = {"logprobs": {"content": logs}} if logprobs else {}
            add(index, {"content": piece}, token_ids=list(map(ord, piece)), **more)
            if tools:
                call: Event = {"index": 0, "function": {"arguments": piece}}
                if at == 0:
                    call |= {"id": f"call-{name}", "type": "function"}
                    call["function"]["name"] = "f"
                add(index, {"tool_calls": [call]})
            at = cut
        add(index, {}, finish_reason="stop")
    usage = {"prompt_tokens": 1, "completion_tokens": sum(map(len, texts.values()))}
    events.append({"id": name, "created": 1, "object": "chunk", "choices": [], "usage": usage})
    return events


def encoded(events: list[Event]) -> bytes:
    return b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events)


def whole(events: list[Event]) -> dict[Any, Any]:
    """Every part of a stream; the names of calls are those of their run."""
    stream = ChoiceStream()
    stream.add(encoded(events))
    stream.fold()
    return {path: value for path, value in stream.parts.has.items() if path[-1] != "id"}


TEXTS = st.dictionaries(st.integers(0, 2), st.text(min_size=1, max_size=20), min_size=1)
CUTS = st.lists(st.integers(0, 20), max_size=6)


@settings(deadline=None)
@given(TEXTS, st.lists(CUTS, min_size=9, max_size=9), st.data(), st.booleans(), st.booleans())
def test_each_part_comes_once(
    texts: dict[int, str], cuts: list[list[int]], data: st.DataObject, tools: bool, logs: bool
) -> None:
    runs = [
        stream(texts, {i: cuts[3 * run + i] for i in texts}, f"run-{run}", tools, logs)
        for run in range(3)
    ]
    delivered = ChoiceStream()
    client: list[Event] = runs[0][: data.draw(st.integers(1, len(runs[0])))]
    delivered.add(encoded(client))
    for run in runs[1:]:
        delivered.begin()
        end = len(run) if run is runs[-1] else data.draw(st.integers(0, len(run)))
        for event in run[:end]:
            left = delivered.rest(json.dumps(event).encode())
            if left is not None:
                client.append(json.loads(left.removeprefix(b"data: ")))
    assert delivered.rest(b"[DONE]") == b"data: [DONE]\n\n"
    assert whole(client) == whole(runs[0])
    assert {event["id"] for event in client} == {"run-0"}
    usages = [event for event in client if event.get("usage")]
    assert usages == [{**runs[0][-1], "created": client[0]["created"]}] or usages == [runs[0][-1]]
    for event in client:  # nothing empty is sent
        assert not event["choices"] or list(parts_of(event))


@settings(deadline=None)
@given(TEXTS, CUTS, CUTS, st.data())
def test_another_text_is_noticed(
    texts: dict[int, str], cuts: list[int], others: list[int], data: st.DataObject
) -> None:
    events = stream(texts, dict.fromkeys(texts, cuts), "a", False, False)
    delivered = ChoiceStream()
    delivered.add(encoded(events[:-1]))
    index = data.draw(st.sampled_from(sorted(texts)))
    place = data.draw(st.integers(0, len(texts[index]) - 1))
    text = texts[index]
    changed = text[:place] + ("x" if text[place] != "x" else "y") + text[place + 1 :]
    other = stream({**texts, index: changed}, dict.fromkeys(texts, others), "b", False, False)
    delivered.begin()
    with pytest.raises(DivergedError, match=r"choices\.\d+\.(delta\.content|token_ids)"):
        [delivered.rest(json.dumps(event).encode()) for event in other]


def test_a_run_that_ends_before_what_the_client_has() -> None:
    delivered = ChoiceStream()
    delivered.add(encoded(stream({0: "long"}, {0: []}, "a", False, False)[:2]))
    delivered.begin()
    with pytest.raises(DivergedError, match="answered differently"):
        delivered.rest(b"[DONE]")


@pytest.mark.parametrize(
    "data", [b"", b"[", b"3", b'{"choices":3}', b'{"choices":[4]}', b"\xff", b"[[[[[["]
)
def test_what_is_no_event(data: bytes) -> None:
    delivered = ChoiceStream()
    delivered.add(encoded(stream({0: "a"}, {0: []}, "a", False, False)[:2]))
    delivered.begin()
    with pytest.raises(DivergedError, match="is not what a server"):
        delivered.rest(data)


def test_an_error_passes() -> None:
    error = b'{"error":{"code":"x"}}'
    assert ChoiceStream().rest(error) == b"data: " + error + b"\n\n"


def test_comments_are_no_events() -> None:
    assert list(EVENTS.datas(b": wait\n\ndata: 1\n\n\n\ndata: 2\n\n")) == [b"1", b"2"]


def test_long_streams_are_folded() -> None:
    delivered = ChoiceStream()
    events = stream({0: "abc" * 4000}, {0: list(range(0, 12000, 3))}, "a", False, True)
    for event in events:
        delivered.add(encoded([event]))
        assert len(delivered._raw) <= (16 << 10) + 1000
    delivered.fold()
    assert delivered.parts.has["choices", 0, "delta", "content"] == "abc" * 4000
