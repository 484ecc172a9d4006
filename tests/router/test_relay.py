"""The router and servers that serve, refuse, stall, break off and lie."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from support.mock_api import HEAD, Step, chunk, end, event, plain, said
from support.replicas import ADMIN_KEY, FakeReplica, Request, Routed, cache_event, routing

from penstock.engine.prompt_keys import prompt_keys
from penstock.errors import ConfigError
from penstock.router import probes, upstream
from penstock.router.exchange import Timeouts
from penstock.router.fleet import Fleet
from penstock.router.options import RouterOptions

SSE = {"content-type": "application/json"}


def echo(request: Request) -> Sequence[Step]:
    """An answer without a stream that repeats what was asked."""
    body = json.dumps({"path": request.path, "got": request.body.decode("latin-1")}).encode()
    return [plain("200 OK", body, "Content-Type: application/json", "X-Own: 1")]


def story(request: Request) -> Sequence[Step]:
    """A stream of ten texts."""
    return [HEAD, *[said(f" {i}") for i in range(10)], end(4, 10)]


def refused(response: httpx.Response, status: int, code: str) -> str:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code
    message: str = error["message"]
    return message


def texts(response: httpx.Response) -> str:
    """What a stream says; it must be whole."""
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", response.text
    found = ""
    for line in lines[:-1]:
        for choice in json.loads(line)["choices"]:
            found += choice["delta"].get("content", "")
    return found


def test_a_request_passes_as_it_is_and_so_does_its_answer() -> None:
    async def main() -> None:
        replica = FakeReplica(echo)
        async with routing(replica) as routed:
            body = b'{"model":"m", "prompt":"\xc3\xa4",  "x":[1.50]}'
            headers = {
                "content-type": "application/json",
                "authorization": "Bearer user",
                "x-request-id": "mine",
                "connection": "x-hop",
                "x-hop": "1",
                "x-own": "2",
            }
            answer = await routed.http.post("/v1/completions?a=b", content=body, headers=headers)
            assert answer.status_code == 200
            assert answer.json() == {
                "path": "/v1/completions?a=b",
                "got": body.decode("latin-1"),
            }
            assert answer.headers["x-own"] == "1"
            assert answer.headers["x-request-id"] == "mine"
            got = replica.asked[0].headers
            assert got["authorization"] == "Bearer user"
            assert got["x-request-id"] == "mine"
            assert got["x-own"] == "2"
            assert got["x-forwarded-for"] == "127.0.0.1"
            assert "x-hop" not in got
            assert got["host"] == replica.url.removeprefix("http://")

    asyncio.run(main())


def test_what_is_escaped_in_a_path_stays_so() -> None:
    async def main() -> None:
        replica = FakeReplica(echo)
        async with routing(replica) as routed:
            for path in ("/v1/models/a%2Fb%20c", "/v1/a%20b%3Fc%01?q=%0d%0a&r=%c3%a4"):
                answer = await routed.http.get(path)
                assert answer.json()["path"].lower() == path.lower()
            assert (await routed.http.get("/v1/a%0d%0aX:%20y")).status_code == 404

    asyncio.run(main())


def test_a_stream_is_not_held_back() -> None:
    async def main() -> None:
        seen: list[str] = []
        pieces = [b"data: {}\n\n", b"dat", b"a: 1\n", b"\ndata: [DONE]\n\n"]

        def answer(request: Request) -> Sequence[Step]:
            steps: list[Step] = [HEAD]
            for number, piece in enumerate(pieces):
                steps += [chunk(piece), lambda n=number: len(seen) > n]  # type: ignore[misc]
            return [*steps, b"0\r\n\r\n"]

        async with (
            routing(FakeReplica(answer)) as routed,
            routed.http.stream(
                "POST", "/v1/chat/completions", json={"model": "m", "stream": True}
            ) as response,
        ):
            async for piece in response.aiter_raw():
                seen.append(piece.decode())
        assert seen == [piece.decode() for piece in pieces]

    asyncio.run(main())


def test_a_replica_that_is_not_there_is_passed_over() -> None:
    async def main() -> None:
        gone, there = FakeReplica(echo), FakeReplica(echo)
        async with routing(gone, there) as routed:
            gone.kill()
            for _ in range(4):
                assert (await routed.complete(prompt="a")).status_code == 200
            assert len(there.asked) == 4
            assert await routed.metric("failures", gone.url) == 1  # once; then it is known
            assert await routed.metric("retries", gone.url) == 1
            assert await routed.metric("ready", gone.url) == 0
            await gone.start()
            await routed.look()
            assert await routed.metric("ready", gone.url) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    "steps",
    [
        [0],
        [b"HTTP/1.1 200 OK\r\ncontent-", 0],
        [b"SSH-2.0-OpenSSH_9.6\r\n", 0],
        [b"\x00\xff" * 100, 0],
        [b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 70_000, 0],
        [b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n123", 0],
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 0],
        [b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", 0],
        [plain("503 Service Unavailable", b'{"error":{"message":"draining"}}')],
        [plain("429 Too Many Requests", b"{}", "Retry-After: 3")],
    ],
)
def test_what_has_not_begun_is_asked_for_elsewhere(steps: list[Step]) -> None:
    async def main() -> None:
        bad, good = FakeReplica(lambda request: steps), FakeReplica(echo)
        async with routing(bad, good) as routed:
            answers = [await routed.complete(prompt="a") for _ in range(3)]
            assert [answer.status_code for answer in answers] == [200] * 3
            assert len(good.asked) == 3
            assert len(bad.asked) >= 1

    asyncio.run(main())


def test_without_another_replica_its_refusal_is_passed_on() -> None:
    async def main() -> None:
        full = plain("429 Too Many Requests", b'{"error":1}', "Retry-After: 3", "X-A: b")
        one, two = FakeReplica(lambda request: [full]), FakeReplica(lambda request: [full])
        async with routing(one, two) as routed:
            answer = await routed.complete(prompt="a")
            assert answer.status_code == 429
            assert answer.headers["retry-after"] == "3"
            assert answer.content == b'{"error":1}'
            assert len(one.asked) == len(two.asked) == 1

    asyncio.run(main())


def test_errors_that_name_their_cause() -> None:
    async def main() -> None:
        replica = FakeReplica(lambda request: [0])
        async with routing(replica, max_body_bytes=1000) as routed:
            message = refused(await routed.complete(prompt="a"), 503, "no_replica")
            assert "closed the connection before it answered" in message
            answer = await routed.http.post("/v1/completions", json={"model": "other"})
            assert "replicas serve 'm'" in refused(answer, 404, "model_not_found")
            answer = await routed.complete(prompt="a" * 2000)
            assert answer.status_code == 413
            assert (await routed.http.get("/v2")).status_code == 404
            assert (await routed.http.put("/v1/completions")).status_code == 405
            replica.ready = plain("503 X", b'{"error":{"message":"closed for today"}}')
            await routed.look()
            message = refused(await routed.http.get("/ready"), 503, "no_replica")
            assert "closed for today" in message
            assert (await routed.http.get("/health")).json() == {"status": "routing"}

    asyncio.run(main())


def test_a_slow_replica_is_given_up() -> None:
    async def main() -> None:
        slow, good = FakeReplica(lambda request: [30.0]), FakeReplica(echo)
        timeouts = Timeouts(head=0.1, idle=0.1)
        async with routing(slow, good, timeouts=timeouts) as routed:
            assert (await routed.complete(prompt="a")).status_code == 200
            assert (await routed.complete(prompt="a")).status_code == 200
            assert len(slow.asked) >= 1
        stalls = FakeReplica(lambda request: [HEAD, said("a"), 30.0])
        async with routing(stalls, timeouts=timeouts) as routed:
            answer = await routed.http.post(
                "/v1/chat/completions", json={"model": "m", "stream": True}
            )
            last = answer.text.strip().splitlines()[-1]
            error = json.loads(last.removeprefix("data: "))["error"]
            assert error["code"] == "stream_broken"
            assert "nothing came for 0.1 s" in error["message"]
            assert "[DONE]" not in answer.text

    asyncio.run(main())


def test_a_replica_that_hangs_is_left_once_it_answers_no_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "_PATIENCE", 0.05)
    monkeypatch.setattr(upstream, "_SILENT_S", 0.1)

    async def main() -> None:
        hanging, good = FakeReplica(lambda request: [30.0]), FakeReplica(echo)
        async with routing(hanging, good) as routed:
            waiting = asyncio.ensure_future(routed.complete(prompt="a"))
            while not hanging.asked:
                await asyncio.sleep(0.001)
            hanging.ready = b""  # nor does it answer probes
            while not waiting.done():
                await routed.look()
            assert waiting.result().status_code == 200
            assert len(good.asked) == 1

    asyncio.run(main())


def test_models_are_those_of_all() -> None:
    async def main() -> None:
        one, two = FakeReplica(echo, ("a", "b")), FakeReplica(echo, ("b", "c"))
        async with routing(one, two) as routed:
            cards = (await routed.http.get("/v1/models")).json()["data"]
            assert [card["id"] for card in cards] == ["a", "b", "c"]
            for model in ("a", "c", "a"):
                answer = await routed.http.post("/v1/completions", json={"model": model})
                assert answer.status_code == 200
            assert [request.json["model"] for request in one.asked] == ["a", "a"]
            assert [request.json["model"] for request in two.asked] == ["c"]

    asyncio.run(main())


def test_equal_beginnings_meet_by_their_text() -> None:
    async def main() -> None:
        replicas = [FakeReplica(echo) for _ in range(3)]
        async with routing(*replicas) as routed:
            for turn in range(4):
                for talk in "abcdef":
                    prompt = talk * 3000 + "x" * 300 * turn
                    assert (await routed.complete(prompt=prompt)).status_code == 200
            seen = [{request.json["prompt"][0] for request in r.asked} for r in replicas]
            assert [len(each) for each in seen] == [2, 2, 2]
            assert set.union(*seen) == set("abcdef")
            cached = [await routed.metric("prompt_tokens_cached", r.url) for r in replicas]
            assert min(cached) > 3000

    asyncio.run(main())


async def synchronized(routed: Routed) -> None:
    while not all(replica.synchronized for replica in routed.fleet.replicas):
        await asyncio.sleep(0.001)


def ours(answer: Any, *events: bytes) -> FakeReplica:
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    for each in events:
        queue.put_nowait(each)
    return FakeReplica(answer, is_ours=True, events=queue)


def test_what_caches_report_decides() -> None:
    async def main() -> None:
        prompt = list(range(320))
        keys = prompt_keys(prompt)
        empty, full = (
            ours(echo, cache_event("e", None, 0, [])),
            ours(echo, cache_event("f", None, 10, keys)),
        )
        async with routing(empty, full, admin_key=ADMIN_KEY) as routed:
            await synchronized(routed)
            for _ in range(3):
                await routed.complete(prompt=prompt)
            assert (len(empty.asked), len(full.asked)) == (0, 3)
            assert empty.keys_asked + full.keys_asked == 3
            assert await routed.metric("prompt_tokens_cached", full.url) == 3 * 320
            # It loses what it had.
            assert full.events is not None
            full.events.put_nowait(cache_event("f", 10, 20, [], keys))
            while routed.fleet.router.index.holders(keys[0]):
                await asyncio.sleep(0.001)
            await routed.complete(prompt=prompt)
            assert await routed.metric("prompt_tokens_cached", full.url) == 3 * 320

    asyncio.run(main())


def test_following_goes_on_after_a_cut_a_gap_and_a_restart() -> None:
    async def main() -> None:
        keys = prompt_keys(list(range(96)))
        replica = ours(echo, cache_event("e", None, 5, keys[:1]))
        async with routing(replica, admin_key=ADMIN_KEY) as routed:
            await synchronized(routed)
            book = routed.fleet.router.reported(0)
            events = replica.events
            assert events is not None
            events.put_nowait(b"")  # the connection breaks
            while len(replica.follows) < 2:
                await asyncio.sleep(0.001)
            assert replica.follows[1].endswith("?epoch=e&after=5")
            events.put_nowait(cache_event("e", 5, 6, keys[1:2]))
            while book.held != 2:
                await asyncio.sleep(0.001)
            events.put_nowait(cache_event("e", 7, 8, keys[2:]))  # one was lost
            while len(replica.follows) < 3:
                await asyncio.sleep(0.001)
            assert replica.follows[2] == "/admin/cache/events"
            events.put_nowait(cache_event("e", None, 9, keys))
            while book.held != 3:
                await asyncio.sleep(0.001)
            events.put_nowait(cache_event("later", None, 0, []))  # the engine began anew
            while book.held:
                await asyncio.sleep(0.001)
            for bad in (b"{", b'{"epoch":"later"}', cache_event("later", 0, 1, [b"half"])):
                before = len(replica.follows)
                events.put_nowait(bad)
                while len(replica.follows) == before:
                    await asyncio.sleep(0.001)
                assert replica.follows[-1] == "/admin/cache/events"

    asyncio.run(main())


def test_the_admin_key_is_for_servers_of_ours_alone() -> None:
    async def main() -> None:
        other = FakeReplica(echo)
        seen: list[str] = []
        real = other._steps

        def steps(request: Request) -> Sequence[Step]:
            seen.append(request.headers.get("authorization", ""))
            return real(request)

        other._steps = steps  # type: ignore[method-assign]
        async with routing(other, admin_key=ADMIN_KEY) as routed:
            await routed.complete(prompt="a")
        assert seen
        assert not any(seen)

    asyncio.run(main())


@pytest.mark.parametrize("cut", range(0, 11, 2))
def test_a_stream_of_ours_goes_on_at_another(cut: int) -> None:
    async def main() -> None:
        one, two, three = (FakeReplica(story, is_ours=True) for _ in range(3))
        for dying, events in ((one, cut), (two, min(cut + 3, 10))):
            steps = [HEAD, *[said(f" {i}") for i in range(events)], chunk(b'data: {"cho'), 0]
            dying.answer = lambda request, steps=steps: steps  # type: ignore[misc]
        async with routing(one, two, three) as routed:
            body = {"model": "m", "stream": True, "messages": []}
            answer = await routed.http.post("/v1/chat/completions", json=body)
            assert texts(answer) == "".join(f" {i}" for i in range(10))
            seeds = {request.json["seed"] for r in (one, two, three) for request in r.asked}
            assert len(seeds) == 1
            if cut:
                assert await routed.metric("resumed_streams", one.url) == 1

    asyncio.run(main())


def test_a_seed_of_the_client_stays() -> None:
    async def main() -> None:
        replica = FakeReplica(story, is_ours=True)
        async with routing(replica) as routed:
            for seed in (7, None):
                body = {"model": "m", "stream": True, "messages": [], "seed": seed}
                texts(await routed.http.post("/v1/chat/completions", json=body))
            assert replica.asked[0].json["seed"] == 7
            assert isinstance(replica.asked[1].json["seed"], int)

    asyncio.run(main())


def test_another_answer_ends_in_one_error() -> None:
    async def main() -> None:
        dying = FakeReplica(lambda request: [HEAD, said("a"), said("b"), 0], is_ours=True)
        other = FakeReplica(lambda request: [HEAD, said("a"), said("c"), end(1, 2)], is_ours=True)
        async with routing(dying, other) as routed:
            body = {"model": "m", "stream": True, "messages": []}
            answer = await routed.http.post("/v1/chat/completions", json=body)
            lines = [line for line in answer.text.splitlines() if line]
            assert len(lines) == 3
            error = json.loads(lines[2].removeprefix("data: "))["error"]
            assert error["code"] == "stream_broken"
            assert "answered differently" in error["message"]

    asyncio.run(main())


def test_a_stream_of_others_ends_in_one_error() -> None:
    async def main() -> None:
        dying = FakeReplica(lambda request: [HEAD, said("a"), chunk(b'data: {"x'), 0])
        async with routing(dying, FakeReplica(story)) as routed:
            body = {"model": "m", "stream": True, "messages": []}
            answer = await routed.http.post("/v1/chat/completions", json=body)
            first, half, error = answer.text.split("\n\n")[:3]
            assert "content" in first
            assert half == 'data: {"x'
            assert json.loads(error.removeprefix("data: "))["error"]["code"] == "stream_broken"

    asyncio.run(main())


def test_an_engine_that_dies_behind_its_server_is_left() -> None:
    async def main() -> None:
        dead = event({"error": {"message": "gone", "code": "engine_dead"}})
        # As msgspec writes it, without spaces.
        dead = chunk(b'data: {"error":{"message":"gone","code":"engine_dead"}}\n\n')
        dying = FakeReplica(lambda r: [HEAD, said(" 0"), dead, b"0\r\n\r\n"], is_ours=True)
        async with routing(dying, FakeReplica(story, is_ours=True)) as routed:
            body = {"model": "m", "stream": True, "messages": []}
            answer = await routed.http.post("/v1/chat/completions", json=body)
            assert texts(answer) == "".join(f" {i}" for i in range(10))

    asyncio.run(main())


def test_a_client_that_leaves_ends_the_work_at_the_replica() -> None:
    async def main() -> None:
        replica = FakeReplica(lambda request: [HEAD, *[said("a"), 0.01] * 9999])
        async with routing(replica) as routed:
            body = {"model": "m", "stream": True, "messages": []}
            async with routed.http.stream("POST", "/v1/chat/completions", json=body) as response:
                async for _ in response.aiter_raw():
                    break
            while len(routed.requests):
                await asyncio.sleep(0.001)
            assert await routed.metric("decoding", replica.url) == 0
            assert await routed.metric("prefill_tokens", replica.url) == 0

    asyncio.run(main())


def test_urls_that_are_none() -> None:
    for urls in (("ftp://a",), ("http://a", "http://a/v1"), ("http://x:y@a",)):
        with pytest.raises(ConfigError):
            Fleet(RouterOptions(urls))
