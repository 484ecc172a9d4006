"""What one replica has not, and another one may have."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from support.replicas import FakeReplica, routing
from support.stepped_http import Request, Step, plain

NOT_FOUND = plain("404 Not Found", b'{"error":{"message":"the model is not here"}}')


def none(request: Request) -> Sequence[Step]:
    return [NOT_FOUND]


def fine(request: Request) -> Sequence[Step]:
    return [plain("200 OK", b"{}")]


def test_what_a_replica_does_not_have_is_asked_for_elsewhere() -> None:
    async def main() -> None:
        lacks, has = FakeReplica(none), FakeReplica(fine)
        async with routing(lacks, has) as routed:
            for _ in range(3):
                assert (await routed.complete(prompt="a")).status_code == 200
                assert (await routed.http.get("/v1/files/one")).status_code == 200
            assert lacks.asked
            assert await routed.metric("failures", lacks.url) == 0

    asyncio.run(main())


def test_what_no_replica_has_is_not_found() -> None:
    async def main() -> None:
        one, two = FakeReplica(none), FakeReplica(none)
        async with routing(one, two) as routed:
            answer = await routed.complete(prompt="a")
            assert answer.status_code == 404
            assert answer.content == NOT_FOUND.rpartition(b"\r\n")[2]
            assert len(one.asked) == len(two.asked) == 1

    asyncio.run(main())


def test_a_replica_whose_model_is_another_now_is_asked_for_its_models_at_once() -> None:
    async def main() -> None:
        changed, stays = FakeReplica(fine), FakeReplica(fine)
        async with routing(changed, stays) as routed:
            changed.answer, changed.models = none, ("other",)  # type: ignore[method-assign]
            for _ in range(2):
                assert (await routed.complete(prompt="a")).status_code == 200
            before = len(changed.asked)
            assert before
            await routed.look()
            for _ in range(4):
                assert (await routed.complete(prompt="a")).status_code == 200
            assert len(changed.asked) == before

    asyncio.run(main())
