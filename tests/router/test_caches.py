"""What a router knows of caches: by their events, or by what it has sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from support.replicas import ADMIN_KEY, FakeReplica, Routed, cache_event, routing
from support.stepped_http import Request, Step, plain

from penstock.engine.prompt_keys import prompt_keys
from penstock.routing.books import ReportingBook


def fine(request: Request) -> Sequence[Step]:
    return [plain("200 OK", b"{}")]


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
            ours(fine, cache_event("e", None, 0, [])),
            ours(fine, cache_event("f", None, 10, keys)),
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
        replica = ours(fine, cache_event("e", None, 5, keys[:1]))
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


def test_one_server_by_two_urls_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        event = cache_event("e", None, 0, [])
        async with routing(
            ours(fine, event),
            ours(fine, event),
            ours(fine, cache_event("f", None, 0, [])),
            admin_key=ADMIN_KEY,
        ) as routed:
            await synchronized(routed)
        told = [r.getMessage() for r in caplog.records if "are one server" in r.getMessage()]
        assert len(told) == 1
        assert all(replica.url in told[0] for replica in routed.fleet.replicas[:2])

    asyncio.run(main())


def test_a_cache_that_is_gone_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock.router")

    async def main() -> None:
        replica = ours(fine, cache_event("e", None, 0, []))
        async with routing(replica, admin_key=ADMIN_KEY) as routed:
            await synchronized(routed)
            real, refusals = replica._tell, 0

            async def refusing(request: Request, reader: Any, writer: Any) -> None:
                nonlocal refusals
                refusals += 1
                writer.write(plain("503 X", b"{}"))

            replica._tell = refusing  # type: ignore[method-assign]
            assert replica.events is not None
            replica.events.put_nowait(b"")  # the connection breaks
            while refusals < 3:
                await asyncio.sleep(0.001)
            replica._tell = real  # type: ignore[method-assign]
        told = [r for r in caplog.records if "the events of its cache" in r.getMessage()]
        assert len(told) <= 2  # the cut, and the refusals

    asyncio.run(main())


def test_a_defect_does_not_end_the_following(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        keys = prompt_keys(list(range(64)))
        replica = ours(fine, cache_event("e", None, 1, keys[:1]))
        async with routing(replica, admin_key=ADMIN_KEY) as routed:
            await synchronized(routed)
            book = routed.fleet.router.reported(0)

            def broken(number: int) -> ReportingBook:
                raise KeyError("a defect")

            assert replica.events is not None
            with monkeypatch.context() as patched:
                patched.setattr(routed.fleet.router, "reported", broken)
                replica.events.put_nowait(cache_event("e", 1, 2, keys[1:]))
                while len(replica.follows) < 2:
                    await asyncio.sleep(0.001)
            assert replica.follows[1] == "/admin/cache/events"  # all is read again
            replica.events.put_nowait(cache_event("e", None, 2, keys))
            while book.held != 2:
                await asyncio.sleep(0.001)

    asyncio.run(main())


def test_the_admin_key_is_for_servers_of_ours_alone() -> None:
    async def main() -> None:
        other = FakeReplica(fine)
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


def test_equal_beginnings_meet_by_their_text() -> None:
    async def main() -> None:
        replicas = [FakeReplica(fine) for _ in range(3)]
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
