"""The router and servers that serve, refuse, stall, break off and lie."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import httpx
import pytest
from support.mock_api import HEAD, said
from support.replicas import FakeReplica, routing
from support.stepped_http import Request, Step, chunk, plain

from penstock.errors import ConfigError
from penstock.router import probes, upstream
from penstock.router.exchange import Timeouts
from penstock.router.fleet import Fleet
from penstock.router.options import RouterOptions
from penstock.router.replica import Member

SSE = {"content-type": "application/json"}


def echo(request: Request) -> Sequence[Step]:
    """An answer without a stream that repeats what was asked."""
    body = json.dumps({"path": request.path, "got": request.body.decode("latin-1")}).encode()
    return [plain("200 OK", body, "Content-Type: application/json", "X-Own: 1")]


def refused(response: httpx.Response, status: int, code: str) -> str:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == code
    message: str = error["message"]
    return message


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
            for path in ("/v1/files/a%2Fb%20c", "/v1/a%20b%3Fc%01?q=%0d%0a&r=%c3%a4"):
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
            assert (await routed.http.get("/v3")).status_code == 404
            assert (await routed.http.put("/v1/completions")).status_code == 405
            replica.ready = plain("503 X", b'{"error":{"message":"closed for today"}}')
            await routed.look()
            message = refused(await routed.http.get("/ready"), 503, "no_replica")
            assert "closed for today" in message
            assert (await routed.http.get("/health")).json() == {"status": "routing"}

    asyncio.run(main())


def test_an_error_names_all_that_was_tried() -> None:
    async def main() -> None:
        silent = FakeReplica(lambda request: [0])
        strange = FakeReplica(lambda request: [b"SSH-2.0-OpenSSH_9.6\r\n", 0])
        async with routing(silent, strange) as routed:
            message = refused(await routed.complete(prompt="a"), 503, "no_replica")
            assert f"{silent.url}: it closed the connection before it answered" in message
            assert f"{strange.url}: what it sent is no HTTP" in message

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


def test_models_that_nobody_lists_are_an_error() -> None:
    async def main() -> None:
        one, two = FakeReplica(echo), FakeReplica(echo)
        async with routing(one, two) as routed:
            strange = plain("200 OK", b'{"data":' + b"[" * 5000)
            broken = plain("500 Internal Server Error", b'{"error":{"message":"boom"}}')
            for replica, answer in ((one, strange), (two, broken)):
                replica._steps = lambda request, answer=answer: [answer]  # type: ignore[method-assign, misc]
            message = refused(await routed.http.get("/v1/models"), 503, "no_models")
            assert f"{one.url}: what it answers is no list of models" in message
            assert f"{two.url}: boom" in message

    asyncio.run(main())


def test_urls_that_are_none() -> None:
    fleet = Fleet(RouterOptions())
    fleet.add(Member("http://a"))
    for url in ("ftp://a", "http://a/v1", "http://x:y@a", "http://a:0"):
        with pytest.raises(ConfigError):
            fleet.add(Member(url))
