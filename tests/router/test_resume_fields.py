"""Streams of Ollama's, llama-server's, KServe's and TGI's dialects that begin again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.dialect_streams import DIALECTS, Dialect, Event

from penstock.router.resume.dialects import streaming_at
from penstock.router.resume.parts import DivergedError
from penstock.router.resume.stream import Stream

OWN = ("created_at", "total_duration", "eval_duration", "timings", "tokens_predicted")
"""What tells of the run, or of how far it is."""
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1, max_size=15)
CUTS = st.lists(st.integers(0, 15), max_size=5)
EACH = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=list(DIALECTS))


def stream_of(dialect: Dialect) -> Stream:
    streaming = streaming_at(dialect.path)
    assert streaming is not None
    return streaming.stream()


def read(dialect: Dialect, sent: bytes) -> Event:
    (data,) = dialect.framing.datas(sent)
    assert dialect.framing.event(data) == sent
    event: Event = json.loads(data)
    return event


def run(delivered: Stream, events: list[Event]) -> None:
    """Another run, to its end."""
    for event in events:
        delivered.rest(json.dumps(event).encode())
    delivered.ended()


def merged(events: list[Event]) -> dict[str, Any]:
    """What a stream says: its growing fields put together, and all that its last event has."""
    found: dict[str, Any] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for inner, each in value.items():
                add(f"{name}.{inner}", each)
        elif isinstance(value, (str, list)) and name.rpartition(".")[2] in (
            *("content", "thinking", "response", "tool_calls", "logprobs", "tokens"),
            *("completion_probabilities", "text_output"),
        ):
            found[name] = found.get(name, value[:0]) + value
        elif name == "num_output_tokens":
            found[name] = found.get(name, 0) + value
        elif name.partition(".")[0] not in OWN:
            found[name] = value

    for event in events:
        if "token" in event:
            found.setdefault("events", []).append(event)
        else:
            for name, value in event.items():
                add(name, value)
    return found


@EACH
@given(text=TEXT, cuts=st.lists(CUTS, min_size=3, max_size=3), data=st.data())
def test_each_part_comes_once(
    dialect: Dialect, text: str, cuts: list[list[int]], data: st.DataObject
) -> None:
    runs = [dialect.events(text, cuts[run], run) for run in range(3)]
    client = runs[0][: data.draw(st.integers(0, len(runs[0]) - 1))]
    delivered = stream_of(dialect)
    for event in client:
        delivered.add(dialect.encoded(event))
        assert not delivered.is_over(dialect.encoded(event))
    for number in (1, 2):
        delivered.begin()
        run = runs[number]
        end = len(run) if number == 2 else data.draw(st.integers(0, len(run) - 1))
        for event in run[:end]:
            rest = delivered.rest(json.dumps(event).encode())
            if rest is not None:
                client = [*client, read(dialect, rest)]
                is_last = event is runs[2][-1]
                assert delivered.is_over(rest) == (is_last and dialect.path[:3] != "/v2")
    assert delivered.ended() == (dialect.path[:3] == "/v2")
    assert merged(client) == merged(runs[0])


@EACH
@given(text=TEXT, cuts=CUTS, others=CUTS, data=st.data())
def test_another_text_is_noticed(
    dialect: Dialect, text: str, cuts: list[int], others: list[int], data: st.DataObject
) -> None:
    delivered = stream_of(dialect)
    for event in dialect.events(text, cuts, 0)[:-1] or dialect.events(text, cuts, 0):
        delivered.add(dialect.encoded(event))
    delivered.begin()
    place = data.draw(st.integers(0, max(len(text) - 2, 0)))
    changed = text[:place] + ("x" if text[place] != "x" else "y") + text[place + 1 :]
    with pytest.raises(DivergedError, match="answered differently"):
        run(delivered, dialect.events(changed, others, 1))


@EACH
def test_a_run_that_ends_before_what_the_client_has(dialect: Dialect) -> None:
    delivered = stream_of(dialect)
    for event in dialect.events("abcdef", [2, 4], 0)[:-1]:
        delivered.add(dialect.encoded(event))
    delivered.begin()
    with pytest.raises(DivergedError, match="answered differently"):
        run(delivered, dialect.events("ab", [1], 1))


@EACH
def test_an_error_is_passed_on(dialect: Dialect) -> None:
    delivered = stream_of(dialect)
    delivered.begin()
    error = json.dumps(dialect.error).encode()
    assert delivered.rest(error) == dialect.framing.event(error)


NO_EVENTS = [b"[", b"3", b"\xff", b'{"message":3}', b'{"text_output":4}', b'{"content":null}']


@EACH
@pytest.mark.parametrize("data", NO_EVENTS)
def test_what_is_no_event(dialect: Dialect, data: bytes) -> None:
    fields = dialect.events("a", [], 0)[0]
    if data[:1] == b"{" and not set(json.loads(data)) & set(fields):
        data = b'{"no'
    delivered = stream_of(dialect)
    delivered.begin()
    with pytest.raises(DivergedError, match="is not what a server"):
        delivered.rest(data)
    delivered.add(dialect.framing.event(data))
    with pytest.raises(DivergedError, match="is not what a server"):
        delivered.begin()
