"""Grammars are looked at once, beside the event loop, and not without end."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import OverloadedError, RequestError
from penstock.grammar.spec import GrammarSpec
from penstock.sandbox.grammar_check import GrammarCheck
from penstock.sandbox.jobs import Answer, CheckGrammar, Job
from penstock.sandbox.lanes import Lane
from penstock.sandbox.pool import WorkerPool

GOOD, BAD = GrammarSpec(kind="regex", text="a+"), GrammarSpec(kind="regex", text="(")
DEEP = GrammarSpec(
    kind="lark",
    text="start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(3000)) + 'r3000: "a"',
)


class CountingPool(WorkerPool):
    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Job] = []

    async def run(self, job: Job) -> Answer:
        self.jobs.append(job)
        return await super().run(job)


def test_what_was_found_is_remembered_under_any_name() -> None:
    async def main() -> None:
        pool = CountingPool()
        grammars = GrammarCheck(pool)
        for name in ("guided_regex", "structured_outputs.regex"):
            await grammars.check(GOOD, name)
            for each in (BAD, DEEP):
                with pytest.raises(RequestError) as caught:
                    await grammars.check(each, name)
                assert caught.value.param == name
                assert str(caught.value).startswith(f"{name}: ")
        assert pool.jobs == [CheckGrammar.of(GOOD), CheckGrammar.of(BAD), CheckGrammar.of(DEEP)]
        assert pool.ended == {"crash": 1}
        await pool.aclose()

    asyncio.run(main())


def test_too_many_at_once_are_refused_for_now() -> None:
    async def main() -> None:
        lane = Lane(2, 3, "grammars")
        for _ in range(2):
            await lane.enter()
        waiting = [asyncio.ensure_future(lane.enter()) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="3 grammars wait"):
            await lane.enter()
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
        last = asyncio.ensure_future(lane.enter())
        await asyncio.sleep(0)
        assert lane.num_waiting == 3
        for _ in range(3):
            lane.leave()
        await asyncio.gather(last, *waiting[1:])

    asyncio.run(main())
