"""Grammars are looked at once, beside the event loop, and not without end."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import OverloadedError, RequestError, UnavailableError
from penstock.grammar.spec import GrammarSpec
from penstock.sandbox.grammar_check import GrammarCheck
from penstock.sandbox.jobs import Answer, Checked, CheckGrammar, Job
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

    async def run(self, job: Job, tenant: str = "") -> Answer:
        self.jobs.append(job)
        return await super().run(job, tenant)


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


class Scripted(CountingPool):
    """Answers as told, once it is let."""

    def __init__(self, *answers: Answer | Exception) -> None:
        super().__init__()
        self.answers = list(answers)
        self.may = asyncio.Event()
        self.left = 0

    async def run(self, job: Job, tenant: str = "") -> Answer:
        self.jobs.append(job)
        try:
            await self.may.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_what_was_no_fault_of_the_grammar_is_not_remembered() -> None:
    async def main() -> None:
        pool = Scripted(UnavailableError("lost"), OverloadedError("full"), Checked(None))
        pool.may.set()
        grammars = GrammarCheck(pool)
        for kind in (UnavailableError, OverloadedError):
            with pytest.raises(kind):
                await grammars.check(GOOD, "it")
        for _ in range(2):
            await grammars.check(GOOD, "it")
        assert len(pool.jobs) == 3

    asyncio.run(main())


def test_those_who_ask_for_the_same_at_once_share_one_job() -> None:
    async def main() -> None:
        pool = Scripted(Checked("bad"), Checked("bad"))
        grammars = GrammarCheck(pool)
        names = [f"tools[{i}]" for i in range(50)]
        asking = [asyncio.ensure_future(grammars.check(BAD, name, "a")) for name in names]
        other = asyncio.ensure_future(grammars.check(BAD, "it", "b"))  # its share is its own
        await asyncio.sleep(0.01)
        for task in asking[:10]:
            task.cancel()
        await asyncio.sleep(0.01)
        assert len(pool.jobs) == 2
        pool.may.set()
        for name, task in zip(names[10:], asking[10:], strict=True):
            with pytest.raises(RequestError) as caught:
                await task
            assert caught.value.param == name
        with pytest.raises(RequestError):
            await other
        assert not grammars._looking

    asyncio.run(main())


def test_a_job_ends_when_all_have_left() -> None:
    async def main() -> None:
        pool = Scripted(Checked(None))
        grammars = GrammarCheck(pool)
        asking = [asyncio.ensure_future(grammars.check(GOOD, "it")) for _ in range(3)]
        await asyncio.sleep(0.01)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await asyncio.sleep(0.01)
        assert pool.left == 1
        pool.may.set()
        await grammars.check(GOOD, "it")
        assert len(pool.jobs) == 2

    asyncio.run(main())
