"""What the soak calls wrong, explained and complete."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import pytest

from service.answers import Answer
from service.asking import Asked, Manner
from service.faults import Faults, Span
from service.process import Served
from service.soak import Options, Run
from service.trace import LONGEST_GAP_S, Trace

TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:50.9951690,10000,100
"""


def part(text: str, reason: str | None = None, index: int = 0) -> bytes:
    choice = {"index": index, "text": text, "finish_reason": reason, "logprobs": None}
    return b"data: " + json.dumps({"choices": [choice], "usage": None}).encode()


def said(*events: bytes) -> Answer:
    answer = Answer()
    for event in events:
        answer.take(event)
    return answer


WHOLE = (part("ab"), part("c", "length"), b"data: [DONE]")


class Nobody(Served):
    """A server that is not asked."""

    def __init__(self) -> None:
        pass


@pytest.fixture
def run() -> Run:
    run = Run(Nobody(), Trace([{}], [1.0]), Options("t.csv", 1.0, 1, 1))
    run.expected = [said(*WHOLE)]
    return run


def judged(run: Run, answer: Answer, status: int = 200, left: bool = False) -> tuple[int, ...]:
    run.judge(0, Manner(), Asked(status, answer, left), began=100.0)
    return run.compared, run.wrong, run.unexplained


def test_an_answer_that_is_the_same_however_it_was_cut(run: Run) -> None:
    assert judged(run, said(part("a"), part("bc", "length"), b"data: [DONE]")) == (1, 0, 0)
    assert run.troubles == []


@pytest.mark.parametrize(
    "answer",
    [
        said(part("abd", "length"), b"data: [DONE]"),
        said(part("abc", "stop"), b"data: [DONE]"),
        said(part("ab", "length"), b"data: [DONE]"),
        said(part("abc", "length"), part("", None, 1), b"data: [DONE]"),
    ],
    ids=["text", "reason", "short", "another choice"],
)
def test_a_complete_answer_that_differs_is_wrong(run: Run, answer: Answer) -> None:
    assert judged(run, answer) == (0, 1, 0)
    assert run.troubles


def test_what_came_before_a_client_left_is_compared_too(run: Run) -> None:
    assert judged(run, said(part("a")), left=True) == (0, 0, 0)
    assert judged(run, said(part("b")), left=True) == (0, 1, 0)


def test_an_error_needs_a_fault_that_explains_it(run: Run) -> None:
    dead = said(part("a"), b'data: {"error": {"code": "engine_dead"}}')
    assert judged(run, copy.deepcopy(dead)) == (0, 0, 1)
    run.faults._spans.append(Span("engine_dead", 50.0))  # and still without an engine
    assert judged(run, dead) == (0, 0, 1)
    assert judged(run, said(part("a"))) == (0, 0, 2)  # ends without an error


def test_faults_explain_those_that_lived_through_them() -> None:
    faults = Faults(Nobody(), random.Random(0), 320.0)
    faults._spans.append(Span("aborted", 10.0, 11.0))
    assert faults.excuse("aborted", 5.0, 10.5)
    assert faults.excuse("aborted", 10.9, 20.0)
    assert not faults.excuse("aborted", 11.1, 20.0)
    assert not faults.excuse("aborted", 5.0, 9.9)
    assert not faults.excuse("engine_dead", 5.0, 10.5)


def test_a_trace_is_shrunk_to_fit_and_keeps_its_gaps(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    trace = Trace.read(path, 3, "m", 1010, 4096)
    assert [len(body["prompt"]) for body in trace.bodies] == [37, 39, 1000]
    assert [body["max_tokens"] for body in trace.bodies] == [4, 10, 10]
    assert trace.gaps == [pytest.approx(4.314579), LONGEST_GAP_S]
    assert all(0 <= token < 4096 for body in trace.bodies for token in body["prompt"])
    assert trace.bodies == Trace.read(path, 3, "m", 1010, 4096).bodies
