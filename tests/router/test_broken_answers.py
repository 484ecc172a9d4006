"""Answers that break off, in any way and any number: who is asked next, and when nobody is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

import httpx
import pytest
from support.mock_api import HEAD, end, said
from support.replicas import FakeReplica, Routed, routing
from support.stepped_http import Request, Step, chunk, plain

from penstock.router import tries
from penstock.router.exchange import Exchange, Timeouts
from penstock.router.tries import MOST, MOST_BROKEN

STREAM = {"model": "m", "stream": True, "messages": []}
DOCUMENT = HEAD.replace(b"text/event-stream", b"application/json")
ALL = "".join(f" {i}" for i in range(10))


def fine(request: Request) -> Sequence[Step]:
    return [plain("200 OK", b"{}")]


def story(events: int = 10, *last: Step) -> list[Step]:
    """The beginning of a stream of ten texts and how it goes on: by its end, if it is whole."""
    whole = [end(4, 10)] if events == 10 else [0]
    return [HEAD, *[said(f" {i}") for i in range(events)], *(last or whole)]


def in_turn(*answers: list[Step]) -> Callable[[Request], Sequence[Step]]:
    """One answer after the other, the last of them again and again."""
    left = list(answers)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


def ours(*answers: list[Step]) -> FakeReplica:
    return FakeReplica(in_turn(*answers), is_ours=True)


async def stream(routed: Routed) -> tuple[str, dict[str, str] | None]:
    """What a stream says, and the error that it ends with."""
    answer = await routed.http.post("/v1/chat/completions", json=STREAM)
    assert answer.status_code == 200, answer.text
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    text = ""
    for line in lines[:-1]:
        for choice in json.loads(line)["choices"]:
            text += choice["delta"].get("content", "")
    return text, None if lines[-1] == "[DONE]" else json.loads(lines[-1])["error"]


@pytest.mark.parametrize("status", ["999 X", "600 X", "099 X", "000 X"])
def test_a_status_that_there_is_not(status: str) -> None:
    async def main() -> None:
        bad = FakeReplica(lambda request: [plain(status, b"{}")])
        good = FakeReplica(fine)
        async with routing(bad, good) as routed:
            assert [(await routed.complete(prompt="a")).status_code for _ in range(2)] == [200, 200]
            assert bad.asked

    asyncio.run(main())


@pytest.mark.parametrize("status", ["520 X", "529 X", "418 X"])
def test_a_status_that_has_no_name(status: str) -> None:
    async def main() -> None:
        async with routing(FakeReplica(lambda request: [plain(status, b"{}")])) as routed:
            assert (await routed.complete(prompt="a")).status_code == int(status[:3])

    asyncio.run(main())


def test_a_document_without_a_length_that_breaks_off() -> None:
    async def main() -> None:
        bad = FakeReplica(lambda request: [DOCUMENT, chunk(b'{"a":'), 0])
        good = FakeReplica(lambda request: [DOCUMENT, chunk(b'{"a":'), chunk(b"1}"), b"0\r\n\r\n"])
        async with routing(bad, good) as routed:
            for _ in range(2):
                answer = await routed.complete(prompt="a")
                assert answer.json() == {"a": 1}
                assert answer.headers["content-length"] == "7"
            assert bad.asked

    asyncio.run(main())


def test_a_long_answer_without_a_length_passes() -> None:
    piece = b"x" * (1 << 20)

    async def main() -> None:
        replica = FakeReplica(lambda request: [DOCUMENT, *[chunk(piece)] * 9, b"0\r\n\r\n"])
        async with routing(replica) as routed:
            assert (await routed.complete(prompt="a")).content == 9 * piece

    asyncio.run(main())


def test_a_request_that_ends_servers_is_not_sent_to_all() -> None:
    died = b'{"error":{"message":"gone","code":"engine_dead"}}'

    async def main(steps: list[Step], whole: bool) -> None:
        replicas: list[FakeReplica] = []

        def dying(number: int) -> Callable[[Request], Sequence[Step]]:
            def answer(request: Request) -> Sequence[Step]:
                if whole:
                    replicas[number].kill()
                return steps

            return answer

        replicas += [FakeReplica(dying(number)) for number in range(6)]
        async with routing(*replicas) as routed:
            answered = await routed.complete(prompt="a")
            assert answered.status_code == 502
            assert answered.json()["error"]["code"] == "replicas_broke_off"
            assert answered.headers["x-should-retry"] == "false"
            assert sum(bool(replica.asked) for replica in replicas) == MOST_BROKEN

    asyncio.run(main([0], whole=False))
    asyncio.run(main([0], whole=True))
    asyncio.run(main([plain("503 X", died)], whole=False))


def test_who_is_not_there_or_refuses_blames_no_request() -> None:
    async def main() -> None:
        full = plain("429 X", b"{}")
        gone = [FakeReplica(fine) for _ in range(3)]
        refuse = [FakeReplica(lambda request: [full]) for _ in range(4)]
        good = FakeReplica(fine)
        async with routing(*gone, *refuse, good) as routed:
            for replica in gone:
                replica.kill()
            for _ in range(9):
                assert (await routed.complete(prompt="a")).status_code == 200
            assert len(good.asked) == 9

    asyncio.run(main())


def test_a_stream_that_gets_on_is_never_taken_for_the_cause() -> None:
    """Each run brings one more text, and two servers take turns."""

    async def main() -> None:
        cuts = [story(events) for events in range(1, MOST)]
        one, two = ours(*cuts[::2], story()), ours(*cuts[1::2], story())
        async with routing(one, two) as routed:
            assert await stream(routed) == (ALL, None)
            assert len(one.asked) + len(two.asked) == MOST

    asyncio.run(main())


def test_a_stream_that_gets_nowhere_ends() -> None:
    async def main() -> None:
        replicas = [ours(story(3)) for _ in range(8)]
        async with routing(*replicas) as routed:
            text, error = await stream(routed)
            assert text == " 0 1 2"
            assert error is not None
            assert error["code"] == "stream_broken"
            assert sum(len(each.asked) for each in replicas) == MOST_BROKEN

    asyncio.run(main())


def test_a_stream_waits_for_its_only_server() -> None:
    async def main() -> None:
        replica = ours(story(4), story())
        async with routing(replica) as routed:
            waiting = asyncio.ensure_future(stream(routed))
            while await routed.metric("failures", replica.url) == 0:
                await asyncio.sleep(0.001)
            replica.kill()
            await routed.look()
            assert await routed.metric("ready", replica.url) == 0
            await replica.start()
            await routed.look()
            assert await waiting == (ALL, None)
            assert await routed.metric("resumed_streams", replica.url) == 1

    asyncio.run(main())


def test_a_stream_asks_those_again_that_refused_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "_AGAIN_S", 0.01)

    async def main() -> None:
        full: list[Step] = [plain("429 X", b"{}")]
        dying, busy = ours(story(4)), ours(full, full, full, story())
        async with routing(dying, busy) as routed:
            routed.fleet.replicas[1].is_late = True  # so the other one gets it first
            assert await stream(routed) == (ALL, None)
            assert len(busy.asked) == 4

    asyncio.run(main())


def test_a_stream_waits_no_longer_than_it_may() -> None:
    async def main() -> None:
        async with routing(ours(story(4)), resume_s=0.05) as routed:
            text, error = await stream(routed)
            assert text == " 0 1 2 3"
            assert error is not None
            assert "no other is left" in error["message"]
        full: list[Step] = [plain("429 X", b"{}")]
        async with routing(ours(story(4)), ours(full), resume_s=0.05) as routed:
            routed.fleet.replicas[1].is_late = True
            assert (await stream(routed))[1] is not None

    asyncio.run(main())


def test_what_is_no_stream_never_gets_into_one() -> None:
    async def main() -> None:
        dying, odd, good = ours(story(4)), ours([plain("200 OK", b'{"a":1}')]), ours(story())
        async with routing(dying, odd, good) as routed:
            for late in routed.fleet.replicas[1:]:
                late.is_late = True
            answer = await routed.http.post("/v1/chat/completions", json=STREAM)
            assert '"a"' not in answer.text
            assert answer.text.endswith("data: [DONE]\n\n")

    asyncio.run(main())


def test_an_event_of_ours_that_is_none_ends_in_one_error() -> None:
    async def main() -> None:
        odd = chunk(b"data: {]\n\n")
        async with routing(ours([HEAD, said("a"), odd, 0]), ours(story())) as routed:
            routed.fleet.replicas[1].is_late = True
            answer = await routed.http.post("/v1/chat/completions", json=STREAM)
            last = answer.text.strip().splitlines()[-1]
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "stream_broken"

    asyncio.run(main())


class _Wire:
    """The connection of an exchange that nobody serves."""

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def release(self, exchange: Exchange) -> None:
        pass


def test_a_slow_client_makes_no_silent_replica() -> None:
    """Nothing is read from a replica while its client takes nothing."""

    async def main() -> None:
        exchange = Exchange(_Wire(), Timeouts(idle=30.0), lambda exchange: None)
        reading = asyncio.ensure_future(exchange.read())
        await asyncio.sleep(0)
        exchange.take(b"a")
        assert await reading == b"a"
        exchange._silent_since -= 100  # the client took its time
        reading = asyncio.ensure_future(exchange.read())
        await asyncio.sleep(0)
        exchange._look()
        exchange.take(b"b")
        assert await reading == b"b"
        reading = asyncio.ensure_future(exchange.read())
        await asyncio.sleep(0)
        exchange._silent_since -= 100
        exchange._look()
        with pytest.raises(Exception, match="nothing came for 30 s"):
            await reading
        exchange.close()

    asyncio.run(main())


def test_a_cut_answer_is_cut_for_the_client() -> None:
    async def main() -> None:
        head = HEAD.replace(b"text/event-stream", b"audio/wav")
        async with routing(FakeReplica(lambda request: [head, chunk(b"abc"), 0])) as routed:
            with pytest.raises(httpx.RemoteProtocolError):
                await routed.complete(prompt="a")

    asyncio.run(main())
