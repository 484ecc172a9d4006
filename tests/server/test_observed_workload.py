"""GET /engine/workload: what the server keeps of its requests, and who is told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from support.http_client import Server, refused, running
from support.http_server import ADMIN_KEY
from support.json_schema import fault
from support.waiting import PATIENCE_S, until

from penstock.bench.load.trace_files import TraceScale, read_trace
from penstock.workload.report import ObservedWorkload
from penstock.workload.trace import decoded, read_lines
from penstock.workload.trace_line import TraceLine

PATH = "/engine/workload"
OWNER = {"authorization": f"Bearer {ADMIN_KEY}"}


@pytest.fixture
def watched(tokenizer_folder: Path) -> Iterator[Server]:
    """A server of its own, so that no other test's requests are observed; a step takes 5 ms."""
    with running(tokenizer_folder, 5) as server:
        yield server


def asked(server: Server, query: str = "") -> httpx.Response:
    return server.http.get(PATH + query, headers=OWNER)


def observed(server: Server, query: str = "") -> ObservedWorkload:
    return msgspec.json.decode(asked(server, query).content, type=ObservedWorkload)


def traced(server: Server, tmp_path: Path) -> list[TraceLine]:
    response = asked(server, "?format=jsonl")
    assert response.headers["content-type"] == "application/jsonl"
    path = tmp_path / "trace.jsonl"
    path.write_bytes(response.content)
    return [line for _, line in read_lines(path)]


def complete(server: Server, prompt: object, **fields: Any) -> None:
    body = {"model": "fake", "prompt": prompt, "max_tokens": 3, "ignore_eos": True, **fields}
    assert server.post("/v1/completions", body).status_code == 200


def test_requests_leave_lengths_times_and_equal_prefixes(watched: Server, tmp_path: Path) -> None:
    began = time.monotonic()
    shared = list(range(64))
    complete(watched, [*shared, *[100] * 10])
    time.sleep(0.2)
    complete(watched, [[*shared, *[101] * 40], [102] * 31], max_tokens=9)
    complete(watched, [*shared, 1], cache_salt="another")
    complete(watched, [1, 2], n=2)
    said = [{"role": "user", "content": "secret words"}]
    body = {"model": "fake", "messages": said, "max_tokens": 40, "ignore_eos": True}
    assert watched.post("/v1/chat/completions", body).status_code == 200
    input_ids = {"model": "fake", "input": [3] * 33}
    assert watched.post("/v1/embeddings", input_ids).status_code == 200
    lines = traced(watched, tmp_path)
    seconds = time.monotonic() - began
    first, second, third, salted, several, chat, embedded = lines
    assert [line.input_length for line in lines[:5]] == [74, 104, 31, 65, 2]
    assert [line.output_length for line in lines] == [3, 9, 9, 3, 3, 40, 0]
    kinds = [line.endpoint for line in lines]
    assert kinds == ["completions"] * 5 + ["chat", "embeddings"]
    assert [line.finish_reason for line in lines] == ["length"] * 6 + ["stop"]
    assert several.sequences == 2
    for line in lines:
        assert line.hash_ids is not None
        assert len(line.hash_ids) == -(-line.input_length // 32)
    assert first.hash_ids is not None
    assert second.hash_ids is not None
    assert first.hash_ids[:2] == second.hash_ids[:2]
    rest = [i for line in (third, salted, several, chat, embedded) for i in line.hash_ids or ()]
    assert len({*first.hash_ids, *second.hash_ids, *rest}) == 3 + 2 + len(rest)
    times = [line.timestamp for line in lines]
    assert times == sorted(times, key=lambda at: at or 0.0)
    assert 190 < (second.timestamp or 0) < seconds * 1e3
    for line in lines[:-1]:
        assert line.first_token_ms is not None
        assert line.duration_ms is not None
        assert 4 < line.first_token_ms < line.duration_ms < seconds * 1e3
    # The load test replays it.
    found = read_trace(tmp_path / "trace.jsonl", TraceScale())
    assert [each.turns[0].new_tokens for each in found.recorded] == [
        line.input_length for line in lines[:-1]
    ]


def test_nothing_is_told_but_lengths_times_and_what_is_equal(watched: Server) -> None:
    """Other texts and tokens, salts and users, of which the same are equal, leave the same."""
    for first, words, name in ((0, "secret words", "alice"), (100, "hidden texts", "bobby")):
        shared = list(range(first, first + 64))
        complete(watched, [*shared, first], user=name)
        complete(watched, [*shared, *[first + 70] * 40], cache_salt=name)
        complete(watched, [*shared, first, first + 1], user=name)
        said = [{"role": "user", "content": words}]
        body = {"model": "fake", "messages": said, "max_tokens": 40, "ignore_eos": True}
        assert watched.post("/v1/chat/completions", body).status_code == 200
    lines = list(decoded([asked(watched, "?format=jsonl").content]))
    one, other = ([without_times(line) for line in part] for part in (lines[:4], lines[4:]))
    assert numbered_anew(one) == numbered_anew(other)
    assert one[0].hash_ids is not None
    assert one[2].hash_ids is not None
    assert one[0].hash_ids[:2] == one[2].hash_ids[:2]


def without_times(line: TraceLine) -> TraceLine:
    return msgspec.structs.replace(line, timestamp=None, first_token_ms=None, duration_ms=None)


def numbered_anew(lines: list[TraceLine]) -> list[TraceLine]:
    """The same with numbers of blocks from 0 on, in the order in which they occur."""
    anew: dict[int, int] = {}
    return [
        msgspec.structs.replace(
            line,
            **{
                field: [anew.setdefault(i, len(anew)) for i in getattr(line, field) or ()]
                for field in ("hash_ids", "answer_ids")
            },
        )
        for line in lines
    ]


def test_figures_are_as_the_document_describes(watched: Server) -> None:
    document = watched.http.get("/openapi.json").json()
    operation = document["paths"][PATH]["get"]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert fault(asked(watched).json(), schema, document) is None
    complete(watched, list(range(64)))
    complete(watched, list(range(64)))
    assert fault(asked(watched).json(), schema, document) is None
    workload = observed(watched).workload
    assert (workload.requests, workload.ends) == (2, {"length": 2})
    assert workload.prefixes is not None
    assert workload.prefixes.shareable_tokens == 32
    assert observed(watched, "?since=0").workload.requests == 0
    assert observed(watched, "?since=100").workload.requests == 2


def test_requests_that_do_not_end_well(watched: Server) -> None:
    body = {"model": "fake", "prompt": "a", "max_tokens": 400, "stream": True, "ignore_eos": True}
    with watched.http.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())
    until(lambda: observed(watched).workload.ends == {"abort": 1}, PATIENCE_S, "it is observed")
    refused(watched.post("/v1/completions", {**body, "cache_salt": "refuse", "stream": False}))
    refused(watched.post("/v1/completions", {**body, "max_tokens": 4000}))
    workload = observed(watched).workload
    assert workload.requests == 1
    assert workload.output_tokens is not None
    assert 0 < workload.output_tokens.max < 400


@pytest.mark.parametrize("query", ["?since=-1", "?since=x", "?since=nan", "?format=csv", "?all=1"])
def test_questions_that_it_does_not_know(server: Server, query: str) -> None:
    error = refused(asked(server, query))
    assert error["param"] == query[1:].partition("=")[0]


def test_where_there_are_keys_the_operator_alone_is_told(
    server: Server, tokenizer_folder: Path
) -> None:
    # Whoever may ask, and compare, could find out whether others have asked the same.
    assert server.http.get(PATH).status_code == 401
    with running(tokenizer_folder, 1, api_keys="a-user") as keyed:
        key = {"authorization": "Bearer a-user"}
        assert keyed.http.get("/metrics", headers=key).status_code == 200
        assert refused(keyed.http.get(PATH, headers=key), 403)["code"] == "admin_key_required"
        assert asked(keyed).status_code == 200


def test_a_server_that_keeps_nothing(tokenizer_folder: Path) -> None:
    with running(tokenizer_folder, 1, observe=False) as server:
        complete(server, "abc")
        assert refused(asked(server), 404)["code"] == "not_observed"
