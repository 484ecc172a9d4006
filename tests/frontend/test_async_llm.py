"""AsyncLLM over the engine process: streams, ends, faults and slow consumers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support import byte_tokenizer
from support.fake_core import MAX_MODEL_LEN, VOCAB, completion
from support.waiting import PATIENCE_S

from penstock import AsyncLLM, EngineConfig, RequestError, SamplingParams
from penstock.errors import (
    EngineDeadError,
    OverloadedError,
    PenstockError,
    TokenizerError,
    WeightError,
)
from penstock.frontend.outputs import RequestOutput
from penstock.grammar.spec import GrammarSpec
from penstock.interface.messages import RequestOptions, Tenant
from penstock.sandbox.jobs import Answer, Job
from penstock.sandbox.pool import WorkerPool
from penstock.tokenizer import Tokenizer

"""Seconds to wait for what takes milliseconds, on a slow machine busy with other work."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_tokenizer.write(tmp_path_factory.mktemp("tokenizer"))


@asynccontextmanager
async def engine(
    folder: Path, step_ms: int = 0, max_model_len: int | None = None
) -> AsyncIterator[AsyncLLM]:
    config = EngineConfig(tokenizer=str(folder), seed=step_ms, max_model_len=max_model_len)
    llm = await AsyncLLM.start(config, core="support.fake_core:load", timeout=PATIENCE_S)
    try:
        yield llm
    finally:
        await llm.aclose()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 4 * PATIENCE_S))


async def last(llm: AsyncLLM, *args: Any, **kwargs: Any) -> RequestOutput:
    return [output async for output in llm.generate(*args, **kwargs)][-1]


def greedy(count: int, **options: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=count, **options)


async def idle(llm: AsyncLLM) -> None:
    """Wait until the engine runs nothing; fails by the time limit of the test."""
    while (await llm.stats()).running:
        await asyncio.sleep(0.005)


def test_many_requests_stream_at_once(folder: Path) -> None:
    async def main() -> None:
        async with engine(folder) as llm:
            prompts: list[str | list[int]] = ["abc", "žluť", [1, 2, 3], "x" * 100] * 5
            tokens = [list(p.encode()) if isinstance(p, str) else p for p in prompts]
            outputs = await asyncio.gather(
                *(last(llm, prompt, greedy(10 + i)) for i, prompt in enumerate(prompts))
            )
            for i, output in enumerate(outputs):
                expected = completion(tokens[i], 10 + i)
                assert output.prompt_token_ids == tokens[i]
                assert output.outputs[0].token_ids == expected
                assert output.outputs[0].text == bytes(expected).decode()
                assert output.outputs[0].finish_reason == "length"
                assert output.finished
            assert len({output.request_id for output in outputs}) == len(outputs)

    run(main)


def test_outputs_grow_token_by_token_for_a_consumer_that_keeps_up(folder: Path) -> None:
    async def main() -> None:
        async with engine(folder, step_ms=20) as llm:
            # 20 outputs where the machine has time for both processes; a busy one is asked again.
            for _ in range(20):
                texts = [output.outputs[0].text async for output in llm.generate("a", greedy(20))]
                assert all(b.startswith(a) for a, b in itertools.pairwise(texts))
                assert len(texts[-1]) == 20
                if len(texts) > 5:
                    break
            assert len(texts) > 5
            assert len(texts[0]) < 20

    run(main)


def test_a_slow_consumer_misses_outputs_but_no_text(folder: Path) -> None:
    async def main() -> None:
        async with engine(folder) as llm:
            seen = []
            async for output in llm.generate("a", greedy(300, n=2)):
                seen.append([choice.text for choice in output.outputs])
                await asyncio.sleep(0.1)
            assert len(seen) < 150  # 4 of 300 where the engine is not held up
            assert seen[-1] == [bytes(completion([97], 300, i)).decode() for i in range(2)]

    run(main)


@pytest.mark.parametrize("how", ["break", "cancel", "abort"])
def test_leaving_a_request_stops_it_in_the_engine(folder: Path, how: str) -> None:
    async def main() -> None:
        async with engine(folder, step_ms=10) as llm:
            seen: list[RequestOutput] = []

            async def consume() -> None:
                async with aclosing(llm.generate("a", greedy(500), request_id="r")) as outputs:
                    async for output in outputs:
                        seen.append(output)
                        if how == "break" and len(seen) == 5:
                            break

            task = asyncio.ensure_future(consume())
            while len(seen) < 5:
                await asyncio.sleep(0.002)
            if how == "cancel":
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            elif how == "abort":
                llm.abort("r")
                llm.abort("r")
                llm.abort("never seen")
                await task
                assert seen[-1].finished
                assert seen[-1].outputs[0].finish_reason == "abort"
            await task if how == "break" else None
            await idle(llm)
            stats = await llm.stats()
            assert stats.preemptions == 1  # the fake counts aborts there
            assert stats.tokens_generated < 400  # of 500, which take 5 s
            # The id is free again, and nothing left over from the first one reaches the second.
            again = await last(llm, "b", greedy(20), request_id="r")
            assert again.outputs[0].token_ids == completion([98], 20)

    run(main)


def test_a_stop_string_ends_the_request_in_the_engine_too(folder: Path) -> None:
    async def main() -> None:
        async with engine(folder, step_ms=10) as llm:
            text = bytes(completion([97], 200)).decode()
            stop = text[40:44]
            output = await last(llm, "a", greedy(400, stop=(stop,)))
            assert output.outputs[0].text == text[: text.index(stop)]
            assert output.outputs[0].finish_reason == "stop"
            assert output.outputs[0].stop_reason == stop
            await idle(llm)
            assert (await llm.stats()).tokens_generated < 300  # of 400, which take 4 s

    run(main)


def test_a_stop_string_ends_its_sequence_in_the_engine_and_no_other(folder: Path) -> None:
    texts = [bytes(completion([97], 300, index)).decode() for index in range(2)]
    stop = next(t for i in range(5, 40) if (t := texts[0][i : i + 3]) not in texts[1])

    async def main() -> None:
        async with engine(folder, step_ms=5) as llm:
            output = await last(llm, "a", greedy(300, n=2, stop=(stop,)))
            assert [c.finish_reason for c in output.outputs] == ["stop", "length"]
            assert output.outputs[0].text == texts[0][: texts[0].index(stop)]
            assert output.outputs[1].text == texts[1]
            stats = await llm.stats()
            assert stats.preemptions == 1  # the fake counts aborts there
            assert stats.tokens_generated < 550  # of 600

    run(main)


@pytest.mark.parametrize(
    ("prompt", "params", "param", "message"),
    [
        ("", greedy(1), "prompt", "empty"),
        ([], greedy(1), "prompt", "empty"),
        ([5, VOCAB], greedy(1), "prompt", f"token id {VOCAB}"),
        ([5, -1], greedy(1), "prompt", "token id -1"),
        ([5, 10**30], greedy(1), "prompt", "token id 1000"),
        ([5, True], greedy(1), "prompt", "token id True"),
        ("x" * MAX_MODEL_LEN, greedy(1), "prompt", f"{MAX_MODEL_LEN} tokens.*at least 1 tokens"),
        ("x" * 600, greedy(1), "prompt", "at least 89 tokens shorter"),
        ("\ud800", greedy(1), "prompt", "lone surrogate"),
        ("a", greedy(1, n=10**9), "n", "from 1 to"),
        ("a", greedy(1, top_k=10**30), "top_k", "64 bits"),
        ("a", SamplingParams(min_tokens=2**70), "min_tokens", "64 bits"),
        ("a", SamplingParams(temperature=float("nan")), "temperature", "finite"),
        ("a", greedy(1, stop_token_ids=(VOCAB,)), "stop_token_ids", "outside the vocabulary"),
    ],
)
def test_what_cannot_be_served_is_refused_before_the_engine(
    refusing: tuple[asyncio.Runner, AsyncLLM],
    prompt: str | list[int],
    params: SamplingParams,
    param: str,
    message: str,
) -> None:
    runner, llm = refusing
    before = runner.run(llm.stats())
    with pytest.raises(RequestError, match=message) as caught:
        runner.run(last(llm, prompt, params))
    assert caught.value.param == param
    assert runner.run(llm.stats()) == before


@pytest.fixture(scope="module")
def refusing(folder: Path) -> Any:
    with asyncio.Runner() as runner:
        config = EngineConfig(tokenizer=str(folder))
        llm = runner.run(AsyncLLM.start(config, core="support.fake_core:load", timeout=PATIENCE_S))
        yield runner, llm
        runner.run(llm.aclose())


def test_a_refusal_by_the_engine_reaches_its_caller(
    refusing: tuple[asyncio.Runner, AsyncLLM],
) -> None:
    runner, llm = refusing
    with pytest.raises(RequestError, match="refuses this salt") as caught:
        runner.run(last(llm, "a", greedy(3), options=RequestOptions(cache_salt="refuse")))
    assert caught.value.param == "cache_salt"
    assert runner.run(last(llm, "a", greedy(3))).outputs[0].token_ids == completion([97], 3)


def test_a_request_id_cannot_be_used_twice_at_once(folder: Path) -> None:
    async def main() -> None:
        async with engine(folder, step_ms=2) as llm:
            first = llm.generate("a", greedy(30), request_id="r")
            await anext(first)
            with pytest.raises(RequestError, match="in use"):
                await last(llm, "b", greedy(1), request_id="r")
            outputs = [output async for output in first]
            assert outputs[-1].outputs[0].token_ids == completion([97], 30)

    run(main)


def test_more_sequences_than_may_be_open_are_refused(folder: Path) -> None:
    async def main() -> None:
        async with engine(folder, step_ms=2) as llm:
            llm.open_sequences.limit = 4
            first = llm.generate("a", greedy(30, n=3), request_id="r")
            await anext(first)
            assert llm.open_sequences.count == 3
            with pytest.raises(OverloadedError, match="3 sequences are running and waiting"):
                await last(llm, "b", greedy(1, n=2))
            with pytest.raises(RequestError, match="n is 5"):
                await last(llm, "b", greedy(1, n=5))
            assert (await last(llm, "b", greedy(1))).finished
            outputs = [output async for output in first]
            assert outputs[-1].outputs[0].token_ids == completion([97], 30)
            assert llm.open_sequences.count == 0
            assert (await last(llm, "b", greedy(1, n=4))).finished

    run(main)


def test_a_long_prompt_does_not_hold_the_loop(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tokenized by a process of its own, and what this one does meanwhile is done."""
    text = "All work and no play. " * 10_000

    def encode(*_: object) -> list[int]:
        raise AssertionError("tokenized in the event loop's process")

    async def main() -> None:
        async with engine(folder, max_model_len=1 << 20) as llm:
            short = await llm.encode("All work")
            with monkeypatch.context() as patched:
                patched.setattr(Tokenizer, "encode", encode)
                with pytest.raises(AssertionError, match="tokenized in"):
                    await llm.encode("All work")
                encoding = asyncio.ensure_future(llm.encode(text))
                await asyncio.sleep(0)
                assert not encoding.done()
                found = await encoding
            assert len(found) == len(text)
            assert found[: len(short)] == short

    run(main)


@pytest.mark.parametrize("end", ["kill", "crash", "close"])
def test_open_requests_fail_when_the_engine_ends(folder: Path, end: str) -> None:
    async def main() -> None:
        async with engine(folder, step_ms=5) as llm:
            streams = [llm.generate("a", greedy(500)) for _ in range(3)]
            for stream in streams:
                await anext(stream)
            if end == "kill":
                assert llm._engine is not None
                os.kill(llm._engine.pid, signal.SIGKILL)
            elif end == "crash":
                with pytest.raises(EngineDeadError, match="asked to crash"):
                    await last(llm, "a", greedy(5), options=RequestOptions(cache_salt="crash"))
            else:
                await llm.aclose()
            for stream in streams:
                with pytest.raises(EngineDeadError):
                    async for _ in stream:
                        pass
            assert llm.death is not None
            with pytest.raises(EngineDeadError):
                await last(llm, "a", greedy(1))
            with pytest.raises(EngineDeadError):
                await llm.stats()

    run(main)


@pytest.mark.parametrize(
    ("core", "tokenizer", "error"),
    [
        ("support.fake_core:load_fails", "nowhere", WeightError),
        ("support.fake_core:load", "nowhere", TokenizerError),
    ],
)
def test_a_failed_start_raises_its_cause_and_leaves_no_process(
    core: str, tokenizer: str, error: type[PenstockError]
) -> None:
    async def main() -> None:
        before = _children()
        with pytest.raises(error):
            await AsyncLLM.start(EngineConfig(tokenizer=tokenizer), core=core)
        assert _children() == before

    run(main)


def _children() -> set[str]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return set(file.read().split())


def test_workers_are_told_whose_work_they_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tenants: list[str] = []
    plain = WorkerPool.run

    async def run_job(pool: WorkerPool, job: Job, tenant: str = "") -> Answer:
        tenants.append(tenant)
        return await plain(pool, job, tenant)

    async def main() -> None:
        async with engine(folder) as llm:
            long = "word " * 1000
            assert len(await llm.encode(long, tenant="a")) == len(long)
            await llm.inputs.encode([long], tenant="b")
            await llm.inputs.encode_chat([{"role": "user", "content": "hi"}], tenant="c")
            params = greedy(2, grammar=GrammarSpec(kind="regex", text="a+"))
            options = RequestOptions(tenant=Tenant("d"))
            with contextlib.suppress(RequestError):  # the fake engine may not take it
                await last(llm, "hi", params, options=options)

    monkeypatch.setattr(WorkerPool, "run", run_job)
    run(main)
    assert tenants == ["a", "b", "c", "d"]
