"""Streams that break off, go on elsewhere, or are left by their clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from support.mock_api import HEAD, end, event, said
from support.replicas import FakeReplica, routing, texts
from support.stepped_http import Request, Step, chunk, plain


def story(request: Request) -> Sequence[Step]:
    """A stream of ten texts."""
    return [HEAD, *[said(f" {i}") for i in range(10)], end(4, 10)]


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


def test_an_engine_that_is_back_before_the_next_probe_goes_on() -> None:
    async def main() -> None:
        dead = chunk(b'data: {"error":{"message":"gone","code":"engine_dead"}}\n\n')
        answers = iter([[HEAD, said(" 0"), dead, b"0\r\n\r\n"]])
        only = FakeReplica(lambda r: next(answers, None) or story(r), is_ours=True)
        async with routing(only, wait_s=60.0) as routed:
            body = {"model": "m", "stream": True, "messages": []}
            asked = asyncio.ensure_future(routed.http.post("/v1/chat/completions", json=body))
            while routed.fleet.ready(None):
                await asyncio.sleep(0.001)
            await routed.look()
            assert texts(await asked) == "".join(f" {i}" for i in range(10))
            assert len(only.asked) == 2

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


@pytest.mark.parametrize("streams", [True, False])
def test_a_replica_learns_at_once_that_nobody_reads_its_answer(streams: bool) -> None:
    """The reset tells: the end of a connection may be that of a client which still waits."""

    async def main() -> None:
        how: asyncio.Queue[str] = asyncio.Queue()
        begun = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            request = await Request.read(reader)
            if request.method == "GET":
                writer.write(plain("200 OK", b'{"data":[{"id":"m"}]}', "Connection: close"))
                writer.close()
                return
            if streams:
                writer.write(HEAD + said("a"))
            begun.set()
            try:
                how.put_nowait("end" if await reader.read() == b"" else "more")
            except ConnectionResetError:
                how.put_nowait("reset")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        replica = FakeReplica(story)
        replica.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with routing(replica) as routed:
            body = {"model": "m", "stream": streams, "messages": []}
            asking = asyncio.ensure_future(routed.http.post("/v1/chat/completions", json=body))
            await begun.wait()
            asking.cancel()
            assert await how.get() == "reset"
        server.close()

    asyncio.run(main())
