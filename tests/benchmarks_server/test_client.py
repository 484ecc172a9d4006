"""The clients that are timed: what they read, and a recorded server that says it again."""

from __future__ import annotations

import json
import time

import pytest

from service.canned import Piece, record
from service.client import Reply, read, unchunked
from service.overhead import HttpRun, OfflineRun, Workload, client_alone, summary

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(text: str, tokens: int | None = None) -> bytes:
    usage = None if tokens is None else {"completion_tokens": tokens}
    choices = [{"text": text}] if text else []
    return b"data: " + json.dumps({"choices": choices, "usage": usage}).encode() + b"\n\n"


def pieces() -> list[bytes]:
    done = chunk(event("", 3)) + chunk(b"data: [DONE]\n\n")
    return [HEAD + chunk(event("ab")), chunk(event("0\r\nc")), done, b"0\r", b"\n\r\n"]


def test_a_stream_is_read_however_it_is_cut() -> None:
    whole = b"".join(pieces())
    for cut in range(1, len(whole)):
        said = read(Reply(0.0, [whole[:cut], whole[cut:]]))
        assert (said.text, said.tokens, said.events) == ("ab0\r\nc", 3, 2)


@pytest.mark.parametrize(
    "data",
    [
        HEAD + chunk(event("ab")),
        HEAD + chunk(event("ab")) + b"0\r\n\r\n",
        HEAD + chunk(event("ab")) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n",
        HEAD + chunk(b'data: {"error": {"code": "engine_dead"}}\n\n') + b"0\r\n\r\n",
        b"HTTP/1.1 503 Service Unavailable\r\n\r\n",
    ],
    ids=["cut off", "no end", "no usage", "error", "status"],
)
def test_what_is_no_whole_answer_is_an_error(data: bytes) -> None:
    with pytest.raises(RuntimeError):
        read(Reply(0.0, [data]))


def test_chunks_that_end_early_are_an_error() -> None:
    assert unchunked(b"3\r\nabc\r\n0\r\n\r\n") == b"abc"
    with pytest.raises(RuntimeError):
        unchunked(b"3\r\nabc\r\n")


def test_a_recorded_server_says_the_same_again() -> None:
    replies = [Reply(5.0, pieces(), [5.0 + i / 100 for i in range(5)]) for _ in range(3)]
    recorded = record(replies)
    assert recorded.connections == 3
    assert [piece.connection for piece in recorded.pieces[:3]] == [0, 1, 2]
    assert recorded.pieces[3] == Piece(pytest.approx(0.01), 0, pieces()[1])
    began = time.monotonic()
    assert client_alone(replies) > 0  # it reads all three to their end
    assert time.monotonic() - began > 0.04


def test_costs_are_of_the_same_round_and_without_the_clients() -> None:
    alone = [OfflineRun(1.0, 2.0), OfflineRun(2.0, 2.0), OfflineRun(1.0, 2.0)]
    served = [
        HttpRun(1.25, 2.0, 0.5, 0.2, 10, 10),
        HttpRun(2.2, 2.0, 0.5, 0.2, 10, 10),
        HttpRun(1.6, 2.0, 0.5, 0.2, 10, 10),
    ]
    result = summary(Workload(1, 1, 100, 3, 2), alone, served, 100, 1e-5)
    assert result.offline_tokens_per_s == 100
    assert result.http_tokens_per_s == 80
    assert result.cost_of_best == pytest.approx(0.2)
    assert result.cost_median == pytest.approx(0.2)
    assert result.cost_without_clients == pytest.approx(1 - 1.0 / 1.15)
    assert result.cost_by_processor_time == pytest.approx(0.2)
    assert result.client_share == pytest.approx(0.08)
    assert result.tokens_per_event == 10
