"""Requests of all dialects before several servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from support.dialect_streams import DIALECTS, Dialect, Event
from support.replicas import ADMIN_KEY, FakeReplica, cache_event, routing
from support.stepped_http import Request, Step, chunk, plain

from penstock.engine.prompt_keys import prompt_keys

TEXT = "one two three"
EACH = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=list(DIALECTS))


def stream(dialect: Dialect, *events: Event) -> list[Step]:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {dialect.framing.media_type}; charset=utf-8\r\n"
    start = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()
    return [start, *(chunk(dialect.encoded(event)) for event in events)]


def told(dialect: Dialect, answer: httpx.Response) -> list[Event]:
    return [json.loads(data) for data in dialect.framing.datas(answer.content)]


def text_of(dialect: Dialect, events: Sequence[Event]) -> str:
    return "".join(map(dialect.text, events))


@EACH
@pytest.mark.parametrize("cut", [0, 1, 3])
def test_a_stream_of_ours_goes_on_at_another(dialect: Dialect, cut: int) -> None:
    async def main() -> None:
        first = dialect.events(TEXT, [2, 5, 9], 0)[:cut]
        half = dialect.encoded(dialect.events(TEXT, [1], 0)[0])[:9]
        whole = dialect.events(TEXT, [3, 4], 1)
        dying = FakeReplica(lambda r: [*stream(dialect, *first), chunk(half), 0], is_ours=True)
        other = FakeReplica(lambda r: [*stream(dialect, *whole), b"0\r\n\r\n"], is_ours=True)
        async with routing(dying, other) as routed:
            answer = await routed.http.post(dialect.path, json=dialect.asked())
            assert text_of(dialect, told(dialect, answer)) == text_of(dialect, whole)
            seeds = {dialect.seed(each.json) for each in (*dying.asked, *other.asked)}
            assert len(seeds) == 1
            assert isinstance(seeds.pop(), int)
            assert await routed.metric("resumed_streams", dying.url) == (cut > 0)

    asyncio.run(main())


@EACH
def test_an_engine_that_dies_behind_its_server_is_left(dialect: Dialect) -> None:
    async def main() -> None:
        events = dialect.events(TEXT, [2, 5], 0)
        dies = [*stream(dialect, events[0], dialect.error), b"0\r\n\r\n"]
        dying = FakeReplica(lambda request: dies, is_ours=True)
        other = FakeReplica(lambda r: [*stream(dialect, *events), b"0\r\n\r\n"], is_ours=True)
        async with routing(dying, other) as routed:
            answer = await routed.http.post(dialect.path, json=dialect.asked())
            assert text_of(dialect, told(dialect, answer)) == text_of(dialect, events)

    asyncio.run(main())


@EACH
def test_a_stream_that_cannot_go_on_ends_with_an_error_of_its_dialect(dialect: Dialect) -> None:
    async def main() -> None:
        events = dialect.events(TEXT, [2, 5], 0)[:1]
        for is_ours in (True, False):
            dying = FakeReplica(lambda r: [*stream(dialect, *events), 0], is_ours=is_ours)
            async with routing(dying, resume_s=0.1) as routed:
                answer = await routed.http.post(dialect.path, json=dialect.asked())
                *before, last = told(dialect, answer)
                assert before == events
                assert set(last) <= set(dialect.error)
                said = last["error"]
                assert "broke off" in (said if isinstance(said, str) else said["message"])

    asyncio.run(main())


@EACH
def test_refusals_have_the_form_of_their_dialect(dialect: Dialect) -> None:
    async def main() -> None:
        down = FakeReplica(lambda request: [], ready=plain("503 No", b""))
        async with routing(down) as routed:
            answer = await routed.http.post(dialect.path, json=dialect.asked())
            assert answer.status_code == 503
            assert set(answer.json()) <= set(dialect.error)
            assert type(answer.json()["error"]) is type(dialect.error["error"])
            bad = await routed.http.post(dialect.path, content=b"{}", headers={"content-type": "a"})
            assert bad.status_code in (415, 503)

    asyncio.run(main())


@EACH
def test_a_request_goes_to_who_has_its_model(dialect: Dialect) -> None:
    async def main() -> None:
        events = dialect.events(TEXT, [], 0)

        def answer(request: Request) -> Sequence[Step]:
            return [*stream(dialect, *events), b"0\r\n\r\n"]

        has, other = FakeReplica(answer), FakeReplica(answer, models=("other",))
        async with routing(other, has) as routed:
            for _ in range(3):
                said = await routed.http.post(dialect.path, json=dialect.asked())
                assert told(dialect, said) == events
            assert (len(has.asked), len(other.asked)) == (3, 0)
            path = dialect.path.replace("/m/", "/none/")
            missing = await routed.http.post(path, json=dialect.asked(model="none"))
            assert missing.status_code == 404
            assert "'none' does not exist" in missing.text

    asyncio.run(main())


@pytest.mark.parametrize(("served", "asked"), [("m", "m:latest"), ("m:latest", "m"), ("m", "m")])
def test_the_tag_of_ollamas_names(served: str, asked: str) -> None:
    async def main() -> None:
        has = FakeReplica(lambda r: [plain("200 OK", b"{}")], models=(served,))
        other = FakeReplica(lambda r: [plain("200 OK", b"{}")], models=("other",))
        async with routing(other, has) as routed:
            for body in ({"model": asked}, {"name": asked}):
                assert (await routed.http.post("/api/show", json=body)).status_code == 200
            assert len(has.asked) == 2
            # Other dialects have no tags.
            refused = await routed.http.post("/completion", json={"model": asked})
            assert refused.status_code == (200 if asked == served else 404)

    asyncio.run(main())


def test_a_model_may_be_asked_for_by_an_alias() -> None:
    async def main() -> None:
        has = FakeReplica(lambda r: [plain("200 OK", b"{}")], aliases=("other",))
        async with routing(has) as routed:
            assert (await routed.complete(model="other", prompt="a")).status_code == 200
            assert (await routed.complete(model="none", prompt="a")).status_code == 404

    asyncio.run(main())


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/version", None),
        ("POST", "/api/embed", {"model": "m", "input": "a"}),
        ("POST", "/", {"inputs": "a"}),
        ("GET", "/info", None),
        ("GET", "/v2", None),
        ("GET", "/v2/health/ready", None),
        ("GET", "/v2/models/m/config", None),
        ("GET", "/v2/models/stats", None),
        ("POST", "/v2/models/m/versions/1/infer", {"inputs": []}),
        ("POST", "/v2/rerank", {"model": "m", "query": "a", "documents": ["b"]}),
        ("POST", "/score", {"model": "m", "text_1": "a", "text_2": "b"}),
        ("POST", "/pooling", {"model": "m", "input": "a"}),
        ("GET", "/props?model=m", None),
        ("GET", "/slots", None),
        ("POST", "/apply-template", {"messages": []}),
        ("POST", "/infill", {"input_prefix": "a", "input_suffix": "b"}),
    ],
)
def test_what_is_passed_on_as_it_is(method: str, path: str, body: Any) -> None:
    async def main() -> None:
        there = FakeReplica(lambda request: [plain("200 OK", request.body or b"nothing")])
        async with routing(there) as routed:
            answer = await routed.http.request(method, path, json=body)
            assert answer.status_code == 200, answer.text
            (asked,) = there.asked
            assert (asked.method, asked.path) == (method, path)
            assert answer.content == (b"nothing" if body is None else asked.body)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/pull"),
        ("DELETE", "/api/delete"),
        ("POST", "/models/load"),
        ("POST", "/v2/repository/models/a/b/unload"),
    ],
)
def test_what_changes_one_server_is_refused(method: str, path: str) -> None:
    async def main() -> None:
        there = FakeReplica(lambda request: [plain("200 OK", b"{}")])
        async with routing(there) as routed:
            answer = await routed.http.request(method, path, json={"model": "m"})
            assert answer.status_code == 400
            assert "ask each of them itself" in answer.text
            assert not there.asked

    asyncio.run(main())


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("GET", "/api/tags", "models"),
        ("GET", "/api/ps", "models"),
        ("POST", "/v2/repository/index", ""),
    ],
)
def test_lists_are_those_of_all(method: str, path: str, field: str) -> None:
    async def main() -> None:
        def lists(*names: str) -> FakeReplica:
            entries = [{"name": name, "size": 1} for name in names]
            answer = json.dumps({field: entries} if field else entries).encode()
            return FakeReplica(lambda request: [plain("200 OK", answer)])

        others = FakeReplica(lambda request: [plain("404 Not Found", b"{}")])
        one, two = lists("b", "a"), lists("b", "c")
        async with routing(one, two, others) as routed:
            body = {"ready": True} if method == "POST" else None
            answer = await routed.http.request(method, path, json=body)
            entries = answer.json()[field] if field else answer.json()
            assert [entry["name"] for entry in entries] == ["a", "b", "c"]
            if body is not None:
                assert [request.json for request in one.asked] == [body]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/api/generate", "/api/generate"),
        ("/completion", "/completion"),
        ("/v2/models/m/generate", "/v2/models/{model:path}/generate"),
        ("/v2/models/m/versions/2/generate_stream", "/v2/models/{model:path}/generate_stream"),
    ],
)
def test_the_keys_of_prompts_are_asked_for(path: str, key: str) -> None:
    async def main() -> None:
        prompt = list(range(320))
        answer = [plain("200 OK", b"{}")]
        replicas = []
        for epoch, keys in (("e", []), ("f", prompt_keys(prompt))):
            events: asyncio.Queue[bytes] = asyncio.Queue()
            events.put_nowait(cache_event(epoch, None, 10, keys))
            replicas.append(FakeReplica(lambda request: answer, is_ours=True, events=events))
        async with routing(*replicas, admin_key=ADMIN_KEY) as routed:
            while not all(replica.synchronized for replica in routed.fleet.replicas):
                await asyncio.sleep(0.001)
            for _ in range(2):
                body = {"model": "m", "prompt": prompt, "stream": False}
                await routed.http.post(path, json=body)
            empty, full = replicas
            assert (len(empty.asked), len(full.asked)) == (0, 2)
            assert {*empty.keyed, *full.keyed} == {key}

    asyncio.run(main())
