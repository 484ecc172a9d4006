"""Servers that come and go while requests are open."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
from support.mock_api import HEAD, end, said
from support.replicas import FakeReplica, routing, texts
from support.stepped_http import Step, plain
from support.waiting import PATIENCE_S

from penstock.errors import ConfigError
from penstock.router import tries
from penstock.router.fleet import Fleet
from penstock.router.members import Members
from penstock.router.options import RouterOptions
from penstock.router.replica import Member
from penstock.router.resolver import Resolver

CHAT = "/v1/chat/completions"
STREAM = {"model": "m", "stream": True, "messages": []}


def ours(letters: str, cut: bool = False) -> FakeReplica:
    """A server that streams each of the letters, and breaks off or ends."""
    steps: list[Step] = [HEAD, *map(said, letters), 0 if cut else end(1, len(letters))]
    return FakeReplica(lambda request: steps, is_ours=True)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


def test_servers_come_and_go() -> None:
    async def main() -> None:
        done = asyncio.Event()
        one = FakeReplica(lambda r: [HEAD, said("a"), done.is_set, said("b"), end(1, 2)], ("m",))
        two = ours("xy")
        await one.start()
        await two.start()
        async with routing() as routed:
            members = Members(routed.fleet)
            members.set([Member(one.url)])
            await members.looked_at()
            stream = asyncio.ensure_future(routed.http.post(CHAT, json=STREAM))
            await until(lambda: one.asked)
            members.set([Member(two.url)])
            await members.looked_at()
            assert [replica.url for replica in routed.fleet.replicas] == [two.url]
            assert texts(await routed.http.post(CHAT, json=STREAM)) == "xy"
            told = (await routed.http.get("/metrics")).text
            assert one.url not in told
            assert 'requests_total{replica="gone"} 1.0' in told
            done.set()  # what was open goes on
            assert texts(await stream) == "ab"
            members.set([Member(two.url), Member(one.url)])
            await members.looked_at()
            assert {r.state for r in routed.fleet.replicas} == {"ready"}
            with pytest.raises(ConfigError, match="twice"):
                members.set([Member(one.url), Member(one.url)])
            await members.aclose()
        one.kill()
        two.kill()

    asyncio.run(main())


def test_a_request_waits_for_a_server() -> None:
    async def main() -> None:
        late = ours("xy")
        await late.start()
        async with routing(wait_s=PATIENCE_S) as routed:
            members = Members(routed.fleet)
            waiting = asyncio.ensure_future(routed.http.post(CHAT, json=STREAM))
            await until(lambda: routed.fleet.waiting_requests == 1)
            assert "requests_waiting 1.0" in (await routed.http.get("/metrics")).text
            members.set([Member(late.url)])
            assert texts(await waiting) == "xy"
            assert routed.fleet.waiting_requests == 0
            unknown = await routed.http.post(CHAT, json={**STREAM, "model": "none"})
            assert unknown.status_code == 404
            await members.aclose()
        async with routing(wait_s=0.01) as routed:
            assert (await routed.http.post(CHAT, json=STREAM)).status_code == 503
        late.kill()

    asyncio.run(main())


def test_a_full_server_is_not_waited_for() -> None:
    async def main() -> None:
        full = FakeReplica(lambda request: [plain("429 Too Many Requests", b"full")], is_ours=True)
        async with routing(full, wait_s=PATIENCE_S) as routed:
            answer = await routed.http.post(CHAT, json=STREAM)
            assert (answer.status_code, answer.text) == (429, "full")

    asyncio.run(main())


def test_a_stream_waits_for_the_server_that_takes_the_place_of_its_own() -> None:
    async def main() -> None:
        dying, next_one = ours("abc", cut=True), ours("abcdef")
        await next_one.start()
        async with routing(dying, wait_s=PATIENCE_S) as routed:
            stream = asyncio.ensure_future(routed.http.post(CHAT, json=STREAM))
            await until(lambda: routed.fleet.waiting_requests == 1)
            members = Members(routed.fleet)
            members.set([Member(next_one.url)])
            assert texts(await stream) == "abcdef"
            await members.aclose()
        next_one.kill()

    asyncio.run(main())


def test_a_server_that_was_away_is_asked_again() -> None:
    async def main() -> None:
        replica = ours("abc", cut=True)
        async with routing(replica, wait_s=PATIENCE_S) as routed:
            stream = asyncio.ensure_future(routed.http.post(CHAT, json=STREAM))
            await until(lambda: routed.fleet.waiting_requests == 1)
            replica.answer = ours("abcdef").answer  # type: ignore[method-assign]
            (known,) = routed.fleet.replicas
            routed.fleet.now(known, "down", "it died")
            routed.fleet.now(known, "ready")
            assert texts(await stream) == "abcdef"

    asyncio.run(main())


def test_a_stream_goes_on_at_a_server_of_its_build() -> None:
    async def main() -> None:
        dying, other, alike = ours("abc", cut=True), ours("xyz"), ours("abcdef")
        for replica in (dying, other, alike):
            await replica.start()
        fleet_of = [Member(dying.url, build="1")]
        async with routing() as routed:
            members = Members(routed.fleet)
            members.set(fleet_of)
            await members.looked_at()
            held = asyncio.Event()
            steps = [HEAD, *map(said, "abc"), held.is_set, 0]
            dying.answer = lambda request: steps
            stream = asyncio.ensure_future(routed.http.post(CHAT, json=STREAM))
            await until(lambda: dying.asked)
            # Of equal ones the first is chosen, which is the other.
            members.set([*fleet_of, Member(other.url, build="2"), Member(alike.url, build="1")])
            await members.looked_at()
            held.set()
            assert texts(await stream) == "abcdef"
            await members.aclose()
        other.kill()
        alike.kill()
        dying.kill()

    asyncio.run(main())


def test_a_request_goes_to_so_many_servers_and_no_more() -> None:
    async def main() -> None:
        full = [plain("429 Too Many Requests", b"full")]
        replicas = [FakeReplica(lambda request: full) for _ in range(tries.MOST + 2)]
        async with routing(*replicas) as routed:
            assert (await routed.http.post(CHAT, json=STREAM)).status_code == 429
            assert sum(bool(replica.asked) for replica in replicas) == tries.MOST

    asyncio.run(main())


def test_one_that_comes_back_gets_no_request_a_fourth_time() -> None:
    async def main() -> None:
        replica = FakeReplica(lambda request: [0])
        async with routing(replica, wait_s=PATIENCE_S) as routed:
            (known,) = routed.fleet.replicas
            asked = asyncio.ensure_future(routed.http.post(CHAT, json=STREAM))
            for times in range(1, tries.MOST_BROKEN):
                # Tries, and not requests: one on a connection that was kept is sent once more.
                while (known.counts.failures, routed.fleet.waiting_requests) != (times, 1):
                    await asyncio.sleep(0.01)
                routed.fleet.now(known, "down", "it died")
                routed.fleet.now(known, "ready")
            assert (await asked).json()["error"]["code"] == "replicas_broke_off"
            assert known.counts.failures == tries.MOST_BROKEN

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def test_nothing_comes_back_of_a_server_that_has_gone() -> None:
    async def main() -> None:
        fleet = Fleet(RouterOptions())
        replica = fleet.add(Member("http://one"))
        fleet.joined(replica, reports=True)
        fleet.remove(replica)
        fleet.joined(replica, reports=True)
        fleet.now(replica, "ready")
        assert (replica.state, replica.number, fleet.ready(None)) == ("gone", None, 0)
        assert fleet.router.replicas == 0

    asyncio.run(main())


def test_names_without_addresses_are_named() -> None:
    async def main() -> None:
        async with routing() as routed:
            members = Members(routed.fleet)
            named = Member("http://no.such.host.invalid:1")
            await Resolver([named], members, 1.0).look()
            message = (await routed.http.get("/ready")).json()["error"]["message"]
            assert "http://no.such.host.invalid:1: its name: " in message
            members.unresolved(named.url, "")
            assert "there is none" in (await routed.http.get("/ready")).text
            await members.aclose()

    asyncio.run(main())


def test_a_defect_does_not_end_the_looks_at_names(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        fleet = Fleet(RouterOptions())
        resolver = Resolver([], Members(fleet), 0.001)
        looks = 0

        async def broken() -> None:
            nonlocal looks
            looks += 1
            raise ValueError("a defect")

        monkeypatch.setattr(resolver, "look", broken)
        running = asyncio.ensure_future(resolver.run())
        await until(lambda: looks > 1)
        running.cancel()

    asyncio.run(main())


def test_a_server_with_an_address_of_each_kind_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = ("10.0.0.1", 80), ("10.0.0.2", 80)
    six = [(socket.AF_INET6, 0, 0, "", (f"fd00::{n}", 80, 0, 0)) for n in (1, 2)]
    four = [(socket.AF_INET, 0, 0, "", each) for each in (one, two)]

    async def main() -> None:
        members = Members(Fleet(RouterOptions(probe_s=PATIENCE_S)))
        resolver = Resolver([Member("http://pods")], members, 1.0)
        found: list[list[str]] = []
        monkeypatch.setattr(members, "set", lambda of: found.append([each.url for each in of]))
        for infos in (six + four, four, six):
            monkeypatch.setattr(socket, "getaddrinfo", lambda *a, told=infos, **k: told)
            await resolver.look()
        both = ["http://10.0.0.1:80", "http://10.0.0.2:80"]
        assert found == [both, both, ["http://[fd00::1]:80", "http://[fd00::2]:80"]]

    asyncio.run(main())
