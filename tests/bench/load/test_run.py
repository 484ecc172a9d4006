"""Runs against a server that answers as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.mock_api import HEAD, Body, MockApi, end, event, mock_api, said, usual
from support.stepped_http import Step, chunk, plain

from penstock.bench.load.arrivals import Arrivals, Constant
from penstock.bench.load.connection import Pool
from penstock.bench.load.figures import figures
from penstock.bench.load.outcome import STOPPED
from penstock.bench.load.run import LoadRun, Offer, Ran, Timeouts
from penstock.bench.load.sizes import Sizes
from penstock.bench.load.target import Target
from penstock.bench.load.turn import Conversation, Piece, Turn, chain
from penstock.bench.load.wordbook import Wordbook
from penstock.bench.load.workload import RandomWorkload

ONE = Conversation("0", (Turn((Piece((1,), 5),), 3),))


async def _ran(
    api: MockApi,
    conversations: Iterable[Conversation] = (ONE,),
    arrivals: Arrivals | None = None,
    concurrency: int | None = 1,
    timeouts: Timeouts | None = None,
    watcher: Any = None,
    **fields: Any,
) -> Ran:
    target = replace(Target.parse(api.url), model="mock", **fields)
    pool = Pool(target)
    offer = Offer(arrivals, concurrency, None, None, seed=0)
    run = LoadRun(target, pool, Wordbook(), offer, timeouts or Timeouts(), watcher)
    try:
        return await run.run(iter(conversations))
    finally:
        pool.close()


def ran(api: MockApi, *args: Any, **kwargs: Any) -> Ran:
    async def main() -> Ran:
        async with mock_api(api):
            return await _ran(api, *args, **kwargs)

    return asyncio.run(main())


def test_a_record_has_all() -> None:
    def answer(body: Body) -> Sequence[Step]:
        return [
            HEAD,
            said("", role="assistant"),
            0.03,
            event({"choices": [{"delta": {"reasoning_content": "hm"}}]}),
            0.02,
            said("a"),
            said("b"),
            end(9, 3, prompt_tokens_details={"cached_tokens": 4}),
        ]

    api = MockApi(answer)
    (record,) = ran(api).records
    assert record.ok
    assert record.ttft_s is not None
    assert record.ttfo_s is not None
    assert record.e2el_s is not None
    assert 0.03 <= record.ttft_s < record.ttfo_s <= record.e2el_s
    assert (record.input_tokens_asked, record.output_tokens_asked) == (5, 3)
    assert (record.input_tokens, record.output_tokens, record.cached_tokens) == (9, 3, 4)
    assert (record.finish_reason, record.status, len(record.gaps_us)) == ("length", 200, 3)
    (body,) = api.asked
    assert body["max_tokens"] == 3
    assert body["ignore_eos"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert len(body["messages"][0]["content"].split()) == 5


def test_completions_with_fields_and_headers_of_the_user() -> None:
    def answer(body: Body) -> Sequence[Step]:
        return [HEAD, event({"choices": [{"text": "x"}]}), end(5, 1)]

    api = MockApi(answer)
    (record,) = ran(
        api, kind="completions", extra={"temperature": 0, "stream": True}, headers={"X-A": "b"}
    ).records
    assert record.ok
    assert api.asked[0]["temperature"] == 0
    assert isinstance(api.asked[0]["prompt"], str)
    assert "X-A: b" in api.heads[0]


def test_a_conversation_says_what_was_said_and_keeps_its_connection() -> None:
    contents: list[tuple[Piece | str, ...]] = [("one",), ("two",), ("three",)]
    talk = Conversation("c", chain(contents, [2, 2, 2], [0, 0.01, 0.01]))
    api = MockApi()
    found = ran(api, [talk])
    assert [record.turn for record in found.records] == [0, 1, 2]
    assert [[m["content"] for m in body["messages"]] for body in api.asked] == [
        ["one"],
        ["one", " word word", "two"],
        ["one", " word word", "two", " word word", "three"],
    ]
    assert [m["role"] for m in api.asked[1]["messages"]] == ["user", "assistant", "user"]
    assert api.connections == 1
    first, second, _ = found.records
    assert second.scheduled_s >= first.end_s + 0.01
    assert second.sent_s >= second.scheduled_s


def test_turns_after_a_failed_one_are_not_sent() -> None:
    contents: list[tuple[Piece | str, ...]] = [("one",), ("two",), ("three",)]
    talk = Conversation("c", chain(contents, [2, 2, 2], [0, 0, 0]))
    api = MockApi(lambda body: [plain("500 Oh", b"{}")])
    found = ran(api, [talk, ONE])
    assert [record.error for record in found.records] == ["http 500", "http 500"]
    assert found.skipped_turns == 2


def test_turns_side_by_side() -> None:
    """Both tools are asked at the same time; what follows waits for the slower one."""

    def answer(body: Body) -> Sequence[Step]:
        slow = body["messages"][-1]["content"] == "slow"
        return [HEAD, (lambda: len(api.asked) == 3) if slow else 0.001, said("x"), end(1, 1)]

    turns = (
        Turn(("plan",), 1),
        Turn(("slow",), 1, after=(0,), continues=0),
        Turn(("fast",), 1, after=(0,), continues=0),
        Turn(("both",), 1, after=(1, 2), continues=1),
    )
    api = MockApi(answer)
    found = ran(api, [Conversation("a", turns)])
    by_turn = {record.turn: record for record in found.records}
    assert by_turn[2].sent_s < by_turn[1].end_s
    assert by_turn[3].sent_s >= max(by_turn[1].end_s, by_turn[2].end_s)


def test_at_most_so_many_at_once() -> None:
    many = [replace(ONE, name=str(i)) for i in range(12)]
    api = MockApi(lambda body: [HEAD, said("x"), 0.01, end(1, 1)])
    found = ran(api, many, concurrency=3)
    moments = sorted(
        [(r.sent_s, 1) for r in found.records] + [(r.end_s, -1) for r in found.records]
    )
    open_now, most = 0, 0
    for _, step in moments:
        open_now += step
        most = max(most, open_now)
    assert most == 3
    assert api.connections == 3
    assert len(found.records) == 12


def test_arrivals_do_not_wait_for_answers() -> None:
    many = [replace(ONE, name=str(i)) for i in range(5)]
    api = MockApi(lambda body: [HEAD, lambda: len(api.asked) == 5, said("x"), end(1, 1)])
    found = ran(api, many, Constant(100.0), concurrency=None)
    assert [r.scheduled_s for r in found.records] == [0, 0.01, 0.02, 0.03, 0.04]
    assert all(r.sent_s >= r.scheduled_s for r in found.records)
    assert max(r.sent_s for r in found.records) < min(r.end_s for r in found.records)


def test_recorded_times() -> None:
    found = ran(MockApi(), [replace(ONE, at_s=0.0), replace(ONE, at_s=0.05)], concurrency=None)
    assert [r.scheduled_s for r in found.records] == [0, 0.05]


LATE = 30.0
BAD: dict[str, tuple[Callable[[Body], Sequence[Step]], str, str]] = {
    "closed at once": (lambda b: [0], "reset", "before it answered"),
    "closed within": (lambda b: [HEAD, said("x"), 0], "reset", "within its answer"),
    "ended early": (lambda b: [HEAD, said("x"), b"0\r\n\r\n"], "cut off", "before the answer"),
    "no tokens": (lambda b: [HEAD, end(1, 0)], "no tokens", "no token"),
    "empty": (lambda b: [HEAD, b"0\r\n\r\n"], "no tokens", "without a token"),
    "no HTTP": (lambda b: [b"hello\r\n\r\n", LATE], "protocol", "no HTTP"),
    "no events": (lambda b: [HEAD, chunk(b"<html>\n")], "protocol", "no event"),
    "no JSON": (lambda b: [HEAD, chunk(b"data: {oh\n\n")], "protocol", "oh"),
    "not streamed": (
        lambda b: [plain("200 OK", b'{"choices": []}', "Content-Type: application/json")],
        "protocol",
        "application/json",
    ),
    "an error within": (
        lambda b: [HEAD, said("x"), event({"error": {"message": "engine died"}})],
        "server error",
        "engine died",
    ),
    "overloaded": (
        lambda b: [plain("503 Busy", b'{"error": {"message": "try later"}}')],
        "http 503",
        "try later",
    ),
    "redirected": (
        lambda b: [plain("307 There", b"", "Location: http://other/")],
        "redirect",
        "http://other/",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_answers_have_kinds_and_harm_no_other(name: str) -> None:
    answer, kind, words = BAD[name]
    seen: list[int] = []

    def every_second(body: Body) -> Sequence[Step]:
        seen.append(1)
        return usual(body) if len(seen) % 2 == 0 else answer(body)

    found = ran(MockApi(every_second), [ONE, ONE])
    bad, good = found.records
    assert bad.error == kind
    assert bad.message is not None
    assert words in bad.message
    assert good.ok
    assert figures(found.records).errors == {kind: 1}


@pytest.mark.parametrize(
    ("steps", "timeouts", "kind", "words"),
    [
        ([LATE], Timeouts(stall_s=0.2), "stall", "before the first byte"),
        ([HEAD, said("x"), LATE], Timeouts(stall_s=1.0), "stall", "between tokens"),
        ([HEAD, *[said("x"), 0.02] * 500], Timeouts(total_s=0.3), "timeout", "not complete"),
    ],
)
def test_answers_that_do_not_end(
    steps: Sequence[Step], timeouts: Timeouts, kind: str, words: str
) -> None:
    (record,) = ran(MockApi(lambda body: steps), timeouts=timeouts).records
    assert record.error == kind
    assert record.message is not None
    assert words in record.message


def test_an_answer_that_ends_with_its_connection() -> None:
    head = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    words = b'data: {"choices": [{"text": "a"}]}\n\ndata: [DONE]\n\n'
    api = MockApi(lambda body: [head, words, 0])
    found = ran(api, [ONE, ONE])
    assert [record.error for record in found.records] == [None, None]
    assert api.connections == 2


def test_a_connection_that_was_closed_while_idle_is_replaced() -> None:
    """The server closes behind each whole answer without saying so."""
    api = MockApi(lambda body: [*usual(body), 0])
    found = ran(api, [replace(ONE, at_s=i / 50) for i in range(4)], concurrency=None)
    assert [record.error for record in found.records] == [None] * 4


def test_counts_that_cannot_be_true() -> None:
    api = MockApi(lambda body: [HEAD, said("a"), said("b"), end(1, 1)])
    no_usage = MockApi(lambda body: [HEAD, said("a"), said("b"), end(None, 0)])
    assert figures(ran(api).records).discrepancies == {
        "fewer output tokens than chunks with tokens": 1
    }
    (record,) = ran(no_usage).records
    assert (record.output_tokens, record.tokens) == (None, 2)


def test_stopping_keeps_what_is_done() -> None:
    class Stop:
        def look(self, run: LoadRun) -> bool:
            return len(run.records) == 2

    answers: list[int] = []

    def answer(body: Body) -> Sequence[Step]:
        answers.append(1)
        return usual(body) if len(answers) <= 2 else [HEAD, said("x"), LATE]

    found = ran(MockApi(answer), [ONE] * 5, watcher=Stop())
    assert found.partial
    assert [record.error for record in found.records] == [None, None, STOPPED]
    assert figures(found.records).failed == 0


def test_random_workloads_run() -> None:
    workload = RandomWorkload(Sizes(3, 9), Sizes(1, 4))
    found = ran(MockApi(), [c for c, _ in zip(workload.conversations(0), range(9), strict=False)])
    assert all(record.input_tokens == record.input_tokens_asked for record in found.records)
    assert figures(found.records).output_length_mismatches == 0
