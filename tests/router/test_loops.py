"""Routers that are given themselves, or each other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from support.replicas import FakeReplica, Routed, routing
from support.stepped_http import Request, Step, plain
from support.waiting import PATIENCE_S

from penstock.router.probes import Prober
from penstock.router.replica import Member, Replica


async def given(routed: Routed, url: str) -> Replica:
    """Give a router one more server, and have it looked at."""
    replica = routed.fleet.add(Member(url))
    prober = Prober(routed.fleet, replica)
    routed.probers.append(prober)
    await prober.look()
    return replica


def busy(request: Request) -> Sequence[Step]:
    return [plain("429 Too Many Requests", b'{"error":{"message":"busy"}}')]


def fine(request: Request) -> Sequence[Step]:
    return [plain("200 OK", b"{}")]


def test_a_router_does_not_take_itself_for_a_server() -> None:
    async def main() -> None:
        async with routing(FakeReplica(fine)) as routed:
            itself = await given(routed, routed.url)
            assert itself.state == "down"
            assert "one of the servers that it is given is itself" in itself.trouble
            assert (await routed.complete(prompt="a")).status_code == 200

    asyncio.run(main())


def test_a_request_that_comes_back_goes_elsewhere() -> None:
    async def main() -> None:
        busy_one, good = FakeReplica(busy), FakeReplica(fine)
        async with routing() as one, routing() as two:
            # Each is first sent to the other router, which it was given first.
            for server in (busy_one, good):
                await server.start()
            await given(one, busy_one.url)
            await given(two, good.url)
            await given(one, two.url)
            await given(two, one.url)
            for _ in range(4):
                assert (await one.complete(prompt="a")).status_code == 200
                assert (await two.complete(prompt="a")).status_code == 200
            # No request passes a router twice.
            assert len(busy_one.asked) <= 8
            good.answer = busy
            assert (await one.complete(prompt="a")).status_code in (429, 508)
            assert (await one.http.get("/v1/models")).json()["data"][0]["id"] == "m"
        busy_one.kill()
        good.kill()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
