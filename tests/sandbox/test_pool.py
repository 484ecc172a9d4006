"""Workers do jobs for many, and are lost for the one that ends them alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import support.sandbox_processes as processes
from support import byte_tokenizer, chains
from support.waiting import PATIENCE_S

from penstock.errors import OverloadedError, RequestError, UnavailableError
from penstock.grammar.spec import GrammarSpec
from penstock.sandbox import connection, jobs, pool
from penstock.sandbox.jobs import Checked, CheckGrammar, Tokenize, TokenizeChat, Tokens
from penstock.sandbox.pool import WorkerPool

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
    """Have a test done; whatever it started must be gone when its pool is closed."""

    async def main() -> None:
        before = processes.servers()
        workers = WorkerPool()
        started: set[int] = set()
        try:
            await work(workers)
        finally:
            started = processes.servers() - before
            await workers.aclose()
        await until(lambda: not processes.of(started) - before)

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


@pytest.mark.slow
def test_memory_is_given_back(folder: str) -> None:
    async def work(workers: WorkerPool) -> None:
        assert len(await tokens(workers, text(folder, "word " * 600_000))) == 3_000_000
        mine = {server for server in processes.servers() if server not in before}
        assert mine
        await until(lambda: max(map(processes.resident_bytes, processes.of(mine))) < 150 << 20)
        assert await tokens(workers, text(folder, "hi")) == [*b"hi"]

    before = processes.servers()
    with_pool(work)


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


def busy(workers: WorkerPool, cpu_s: float) -> list[int]:
    """Workers that live and have taken so much processor time."""
    live = processes.of(processes.servers())
    return [pid for pid in workers.pids if pid in live and processes.cpu_s(pid) > cpu_s]


async def kill_server(workers: WorkerPool, cpu_s: float) -> None:
    """End the fork server, once a worker has taken so much processor time."""
    await until(lambda: busy(workers, cpu_s))
    (server,) = processes.servers()
    os.kill(server, signal.SIGKILL)
    await until(lambda: not processes.of({server}) & set(workers.pids))


@pytest.mark.slow
def test_a_worker_that_is_lost_is_no_fault_of_its_job(folder: str) -> None:
    async def work(workers: WorkerPool) -> None:
        long = text(folder, "some words " * 200_000)
        job = asyncio.ensure_future(workers.run(long))
        await kill_server(workers, 0.3)
        answer = await job
        assert isinstance(answer, Tokens)
        assert len(answer.rows[0]) == 4 * 2_200_000
        assert not workers.ended
        bomb = asyncio.ensure_future(workers.run(chat(folder, "endless")))
        for _ in range(2):
            await kill_server(workers, 0.5)
        with pytest.raises(UnavailableError, match="ended before its job"):
            await bomb
        assert workers.ended == {"lost": 1}
        assert await tokens(workers, chat(folder, "hi")) == [*b"hi"]

    with_pool(work)


@pytest.mark.slow
def test_a_worker_that_is_told_to_end_is_no_fault_of_its_job(folder: str) -> None:
    async def work(workers: WorkerPool) -> None:
        bomb = asyncio.ensure_future(workers.run(chat(folder, "endless")))
        for _ in range(2):
            await until(lambda: busy(workers, 0.5))
            (pid,) = busy(workers, 0.5)
            os.kill(pid, signal.SIGTERM)
            await until(lambda pid=pid: pid not in workers.pids)  # type: ignore[misc]
        with pytest.raises(UnavailableError):
            await bomb

    with_pool(work)


def test_a_job_that_takes_too_long_by_the_clock_is_not_refused(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(workers: WorkerPool) -> None:
        assert await tokens(workers, chat(folder, "hi")) == [*b"hi"]
        monkeypatch.setattr(connection, "WALL_S", 0.3)
        with pytest.raises(UnavailableError, match="overloaded"):
            await workers.run(chat(folder, "endless"))
        monkeypatch.undo()
        assert workers.ended == {"late": 1}
        assert await tokens(workers, chat(folder, "hi")) == [*b"hi"]

    with_pool(work)


def test_a_pool_that_is_closed_fails_all_jobs_and_ends_all_processes(folder: str) -> None:
    async def work(workers: WorkerPool) -> None:
        long = text(folder, "some words " * 1_000_000)
        slow = [asyncio.ensure_future(workers.run(long)) for _ in range(6)]
        await until(lambda: len(workers.pids) >= 3)
        held = [asyncio.ensure_future(workers.run(chat(folder, "endless"))) for _ in range(9)]
        await asyncio.sleep(0.05)
        await workers.aclose()
        late = asyncio.ensure_future(workers.run(chat(folder, "hi")))
        async with asyncio.timeout(PATIENCE_S):
            for error in await asyncio.gather(*slow, *held, late, return_exceptions=True):
                assert isinstance(error, UnavailableError), error
                assert "closed" in str(error)
        assert not workers.ended
        await until(lambda: not processes.servers() - before)

    before = processes.servers()
    with_pool(work)


def test_a_pool_that_is_closed_while_it_starts_ends_all_processes(folder: str) -> None:
    async def work(workers: WorkerPool) -> None:
        workers.warm(folder)
        job = asyncio.ensure_future(workers.run(chat(folder, "hi")))
        await asyncio.sleep(0.01)
        await workers.aclose()
        with pytest.raises(UnavailableError):
            await job

    with_pool(work)


def test_a_fork_server_that_hangs_is_replaced(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(workers: WorkerPool) -> None:
        assert await tokens(workers, chat(folder, "hi")) == [*b"hi"]
        (pid,) = workers.pids
        (server,) = processes.servers()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not workers.pids)
        os.kill(server, signal.SIGSTOP)
        monkeypatch.setattr(connection, "START_S", 0.5)
        async with asyncio.timeout(PATIENCE_S):
            with contextlib.suppress(UnavailableError):  # the next may take longer than that too
                await workers.run(chat(folder, "hi"))
        monkeypatch.undo()
        assert server not in processes.servers()
        assert await tokens(workers, chat(folder, "hi")) == [*b"hi"]

    with_pool(work)


@pytest.mark.slow
def test_one_tenant_does_not_refuse_the_long_texts_of_others(folder: str) -> None:
    async def work(workers: WorkerPool) -> None:
        long = text(folder, "some words " * 1_000_000)
        held = [asyncio.ensure_future(workers.run(long, "a")) for _ in range(67)]
        await asyncio.sleep(0)
        short = text(folder, "some words " * 12_000)
        assert short.is_long
        other = asyncio.ensure_future(workers.run(short, "b"))
        await until(lambda: len(workers.pids) >= 3)
        held[0].cancel()  # a seat is free
        answer = await other
        assert isinstance(answer, Tokens)
        refused = [job for job in held if job.done() and not job.cancelled()]
        assert {type(job.exception()) for job in refused} == {OverloadedError}
        for job in held:
            job.cancel()
        await asyncio.gather(*held, return_exceptions=True)

    with_pool(work)


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
