"""What the benchmark of failover takes for the same stream, and for another one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.failover import first_difference
from service.questions import Told, questions


def told(*events: dict[str, Any] | bytes) -> Told:
    found = Told()
    for event in events:
        found.take(event if isinstance(event, bytes) else json.dumps(event).encode())
    return found


def delta(name: str = "a", **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": fields, "finish_reason": None}
    return {"id": name, "created": 5, "model": "m", "choices": [choice]}


def call(**function: str) -> dict[str, Any]:
    return delta(tool_calls=[{"index": 1, "id": "call-1", "function": function}])


def typed(kind: str, number: int, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "sequence_number": number, "output_index": 0, **fields}


def test_the_same_stream_however_it_was_cut() -> None:
    one = told(delta(content="ab"), delta(content="c"), b"[DONE]")
    two = told(delta("b", content="a"), delta("b", content="bc"), b"[DONE]")
    assert one.done
    assert one.parts == two.parts
    one = told(call(name="f", arguments='{"a'), call(arguments='":1}'), b"[DONE]")
    assert one.parts == told(call(name="f", arguments='{"a":1}'), b"[DONE]").parts


@pytest.mark.parametrize(
    "other",
    [
        (delta(content="abd"), b"[DONE]"),
        (delta(content="ab"), b"[DONE]"),
        (delta(reasoning_content="abc"), b"[DONE]"),
        ({**delta(content="abc"), "usage": {"total_tokens": 3}}, b"[DONE]"),
        ({**delta(content="abc"), "model": "n"}, b"[DONE]"),
    ],
)
def test_another_stream(other: tuple[dict[str, Any] | bytes, ...]) -> None:
    expected = told(delta(content="abc"), b"[DONE]")
    assert told(*other).parts != expected.parts
    assert first_difference(told(*other), expected) != "nothing"


def test_what_is_no_stream() -> None:
    with pytest.raises(ValueError, match="behind the last"):
        told(b"[DONE]", delta(content="a"))
    with pytest.raises(ValueError, match="role"):
        told(delta(role="assistant"), delta(role="user"))
    with pytest.raises(ValueError, match="came as number 1"):
        told(typed("response.created", 0), typed("response.output_text.delta", 2, delta="a"))
    assert told({"error": {"message": "gone"}}).error is not None
    assert not told(delta(content="a")).done


def test_responses_are_compared_without_their_names() -> None:
    def stream(name: str) -> Told:
        ended = {"id": name, "output": [{"id": name, "text": "ab"}], "created_at": 1}
        return told(
            typed("response.output_text.delta", 0, item_id=name, delta="a"),
            typed("response.output_text.delta", 1, item_id=name, delta="b"),
            typed("response.output_text.done", 2, item_id=name, text="ab"),
            typed("response.completed", 3, response=ended),
        )

    assert stream("x").parts == stream("y").parts
    assert stream("x").done


def test_every_question_has_its_own_name() -> None:
    asked = questions("m", 3, 400)
    assert len({each.name for each in asked}) == len(asked)
    assert all(each.body["stream"] for each in asked)
