"""Workers do jobs for many, and are lost for the one that ends them alone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import byte_tokenizer
import chains
import pytest

from penstock.errors import OverloadedError, RequestError
from penstock.grammar.spec import GrammarSpec
from penstock.sandbox import jobs, lanes, pool
from penstock.sandbox.jobs import Checked, CheckGrammar, Tokenize, TokenizeChat, Tokens
from penstock.sandbox.pool import WorkerPool

PATIENCE_S = 60.0
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.content == 'endless' %}"
    "{% for a in 'x' * 100000 %}{% for b in 'x' * 100000 %}{% endfor %}{% endfor %}"
    "{% elif m.content == 'memory' %}"
    "{% set n = namespace(l=[]) %}"
    "{% for a in 'x' * 10000 %}{% set n.l = [n.l, ('%d' % loop.index) * 1000000] %}{% endfor %}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = byte_tokenizer.write(tmp_path_factory.mktemp("tokenizer"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def chat(folder: str, content: str) -> TokenizeChat:
    return TokenizeChat.of(
        folder,
        [{"role": "user", "content": content}],
        [],
        {},
        add_generation_prompt=True,
        add_special_tokens=False,
        max_tokens=1 << 20,
    )


def text(folder: str, text: str) -> Tokenize:
    return Tokenize(tokenizer=folder, texts=[text], add_special_tokens=False, parse_special=True)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0.01)


def with_pool(work: Callable[[WorkerPool], Awaitable[None]]) -> None:
    async def main() -> None:
        workers = WorkerPool()
        try:
            await work(workers)
        finally:
            await workers.aclose()
        assert workers.pids == []

    asyncio.run(main())


async def tokens(workers: WorkerPool, job: jobs.Job) -> list[int]:
    answer = await workers.run(job)
    assert isinstance(answer, Tokens)
    (ids,) = answer.lists()
    return ids


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_jobs_are_answered_by_one_worker_in_turn(folder: str) -> None:
    async def work(workers: WorkerPool) -> None:
        assert workers.pids == []
        assert await tokens(workers, chat(folder, "hi<s>")) == [*b"hi<s>"]
        assert await tokens(workers, text(folder, "hi<s>")) == [*b"hi", 256]
        assert await workers.run(CheckGrammar.of(GrammarSpec(kind="regex", text="a"))) == Checked(
            None
        )
        pid = workers.pids[0]
        threads = [len(os.listdir(f"/proc/{each}/task")) for each in (pid, parent(parent(pid)))]
        assert threads == [1, 1]  # what is forked must have one
        assert not any(
            os.path.realpath(f"/proc/{pid}/fd/{fd}").startswith("/dev/pts")
            for fd in os.listdir(f"/proc/{pid}/fd")
        )

    with_pool(work)


@pytest.mark.parametrize("factor", [1, 10])
def test_chains_cost_their_request_alone(folder: str, factor: int) -> None:
    async def fault(workers: WorkerPool, spec: GrammarSpec) -> str:
        try:
            answer = await workers.run(CheckGrammar.of(spec))
        except RequestError as error:
            return str(error)
        assert isinstance(answer, Checked)
        assert answer.fault is not None, spec.text[:100]
        return answer.fault

    async def work(workers: WorkerPool) -> None:
        specs = chains.specs(factor)
        for each in await asyncio.gather(*(fault(workers, spec) for spec in specs.values())):
            assert "nested too deep" in each or "characters" in each
            assert len(each) < 300
        assert await tokens(workers, chat(folder, "hi")) == [*b"hi"]

    with_pool(work)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "words"), [("endless", "3 s of processor"), ("memory", "too much")]
)
def test_bombs_end_within_their_limits(folder: str, content: str, words: str) -> None:
    async def work(workers: WorkerPool) -> None:
        bomb = asyncio.ensure_future(workers.run(chat(folder, content)))
        assert await tokens(workers, chat(folder, "hi")) == [*b"hi"]
        with pytest.raises(RequestError, match=words) as caught:
            await bomb
        assert caught.value.param == "messages"
        assert await tokens(workers, chat(folder, "hi")) == [*b"hi"]

    with_pool(work)


def test_quick_jobs_do_not_wait_for_slow_ones(folder: str) -> None:
    async def work(workers: WorkerPool) -> None:
        bombs = [asyncio.ensure_future(workers.run(chat(folder, "endless"))) for _ in range(9)]
        for _ in range(5):
            assert await tokens(workers, chat(folder, "hi")) == [*b"hi"]
        assert not all(bomb.done() for bomb in bombs)
        for bomb in bombs:
            bomb.cancel()
        await asyncio.gather(*bombs, return_exceptions=True)
        pids = workers.pids
        assert await tokens(workers, chat(folder, "hi")) == [*b"hi"]
        await until(lambda: len([pid for pid in pids if lives(pid)]) <= 4)

    with_pool(work)


def test_a_worker_that_was_killed_is_replaced(folder: str) -> None:
    async def work(workers: WorkerPool) -> None:
        assert await tokens(workers, chat(folder, "hi")) == [*b"hi"]
        for pid in workers.pids:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: not workers.pids)
        assert await tokens(workers, chat(folder, "hi")) == [*b"hi"]
        bomb = asyncio.ensure_future(workers.run(chat(folder, "endless")))
        await asyncio.sleep(0.05)
        for pid in workers.pids:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(RequestError, match="memory"):
            await bomb
        assert workers.ended["memory"] == 1

    with_pool(work)


def test_who_leaves_takes_his_job_along(folder: str) -> None:
    async def work(workers: WorkerPool) -> None:
        long = text(folder, "some words " * 1_000_000)
        running = [asyncio.ensure_future(workers.run(long)) for _ in range(3)]
        waiting = asyncio.ensure_future(workers.run(long))
        await until(lambda: len(workers.pids) >= 3)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        for job in (waiting, *running):
            job.cancel()
        await asyncio.gather(waiting, *running, return_exceptions=True)
        assert workers.ended["left"] == 4
        short = text(folder, "some words " * 20_000)
        assert len(await tokens(workers, short)) == 220_000

    with_pool(work)


def test_memory_is_given_back(folder: str) -> None:
    async def work(workers: WorkerPool) -> None:
        assert len(await tokens(workers, text(folder, "word " * 600_000))) == 3_000_000
        await until(lambda: sum(map(resident_bytes, workers.pids)) < 150 << 20)

    with_pool(work)


def resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except (OSError, IndexError):
        return 0


def test_too_many_slow_jobs_are_refused_for_now(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_MOST_SLOW_WAITING", 1)

    async def work(workers: WorkerPool) -> None:
        long = text(folder, "some words " * 1_000_000)
        held = [asyncio.ensure_future(workers.run(long)) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="long texts and slow jobs wait"):
            await workers.run(long)
        assert workers.ended["overload"] == 1
        for job in held:
            job.cancel()
        await asyncio.gather(*held, return_exceptions=True)

    with_pool(work)


def test_a_place_is_given_back_however_its_job_ends() -> None:
    async def main() -> None:
        first, second = lanes.Lane(1, 1, "jobs"), lanes.Lane(1, 0, "slow jobs")
        with lanes.Place() as place:
            await place.move(first)
            await place.move(second)
            assert second.is_full
            assert not first.is_full
            with lanes.Place() as other, pytest.raises(OverloadedError):
                await other.move(second)
        assert not second.is_full

    asyncio.run(main())


@pytest.mark.parametrize("value", ["\ud800", 10**40, {"a": [1.5, None, True]}])
def test_any_json_travels(folder: str, value: object) -> None:
    async def work(workers: WorkerPool) -> None:
        job = TokenizeChat.of(
            folder,
            [{"role": "user", "content": "hi"}],
            [],
            {"any": value},
            add_generation_prompt=True,
            add_special_tokens=False,
            max_tokens=100,
        )
        assert await tokens(workers, job) == [*b"hi"]

    with_pool(work)


def test_a_lone_surrogate_is_refused(folder: str) -> None:
    async def work(workers: WorkerPool) -> None:
        with pytest.raises(RequestError, match="surrogate"):
            await workers.run(text(folder, "a\ud800"))
        with pytest.raises(RequestError, match="surrogate"):
            await workers.run(chat(folder, "a\ud800"))

    with_pool(work)
