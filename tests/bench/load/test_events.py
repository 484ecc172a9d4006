"""Streams, however their bytes are cut."""

from __future__ import annotations

import contextlib
import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.bench.load.events import EventReader, NoStream, ServerError


def _delta(**fields: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": fields}]}).encode() + b"\n\n"


STREAM = (
    b": a comment\r\n\r\n"
    + _delta(role="assistant", content="")
    + _delta(reasoning_content="hm")
    + _delta(reasoning="so")
    + _delta(content=" Gr\u00fc\u00dfe")
    + b"event: message\r\ndata:"
    + _delta(content="!")[6:]
    + _delta(tool_calls=[{"index": 0}])
    + b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
    + b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5, '
    b'"prompt_tokens_details": {"cached_tokens": 2}}}\n\n'
    b"data: [DONE]\n\n"
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
def test_cuts_change_nothing(cuts: list[int]) -> None:
    reader = EventReader(keep_text=True)
    edges = [0, *sorted(cuts), len(STREAM)]
    for at, (begin, stop) in enumerate(pairwise(edges)):
        reader.feed(STREAM[begin:stop], float(at))
    assert reader.text == " Gr\u00fc\u00dfe!"
    assert len(reader.times) == 5
    assert list(reader.times) == sorted(reader.times)
    assert reader.first_content == 2
    assert reader.complete
    assert reader.done
    assert reader.finish_reason == "stop"
    assert reader.usage is not None
    assert reader.usage.completion_tokens == 5
    assert reader.usage.prompt_tokens_details is not None
    assert reader.usage.prompt_tokens_details.cached_tokens == 2


@settings(deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_no_stream_and_nothing_else(data: bytes, framed: bool) -> None:
    """Whatever comes is taken, or refused by one of two errors."""
    reader = EventReader()
    with contextlib.suppress(NoStream, ServerError):
        reader.feed(b"data: " + data + b"\n\n" if framed else data, 0.0)
    assert len(reader.times) <= data.count(b"{")


@pytest.mark.parametrize(
    "line",
    [
        b"<html>",
        b'data: {"choices": 3}',
        b'data: {"usage": {"prompt_tokens": -1}}',
        b'data: {"choices": [{"delta": {"content": 7}}]}',
        b"data: {",
        b"data: " + b"[" * 5000,
        b"data: \xff\xfe",
    ],
)
def test_what_is_refused(line: bytes) -> None:
    with pytest.raises(NoStream):
        EventReader().feed(line + b"\n\n", 0.0)


def test_an_endless_line_is_refused() -> None:
    reader = EventReader()
    for _ in range(4):
        reader.feed(b"x" * (1 << 20), 0.0)
    with pytest.raises(NoStream, match="4 MiB"):
        reader.feed(b"x", 0.0)


def test_an_error_within_a_stream() -> None:
    reader = EventReader()
    reader.feed(_delta(content="a"), 1.0)
    with pytest.raises(ServerError, match="too long"):
        reader.feed(b'data: {"error": {"message": "too long"}}\n\n', 2.0)


def test_completions() -> None:
    reader = EventReader()
    reader.feed(b'data: {"choices": [{"text": "a"}]}\n\ndata: {"choices": [{"text": ""}]}\n\n', 1)
    assert list(reader.times) == [1.0]
    assert not reader.complete
