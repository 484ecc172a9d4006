"""The engine in its own process: requests, refusals, aborts and signs of life."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from support.engine_processes import engine, request, run
from support.fake_core import VOCAB, completion
from support.waiting import PATIENCE_S

from penstock.engine.ipc.wire import Loading
from penstock.interface.messages import Abort, FinishReason


def test_requests_come_back_with_the_tokens_of_the_core() -> None:
    async def main() -> None:
        async with engine() as (process, seen, ready):
            assert seen.tokenizer_path == "nowhere"
            # Of what comes in a tenth of a second, the first of each phase.
            assert seen.loads[0] == Loading("weights", 0.0, 2**20)
            assert [now.phase for now in seen.loads[-2:]] == ["tuning", "the first token"]
            assert ready.model.vocab_size == VOCAB
            names = [phase.name for phase in ready.phases]
            assert names[0] == "engine python"
            assert names[-1] == "first token"
            assert all(0 <= phase.seconds < PATIENCE_S for phase in ready.phases)
            for i in range(20):
                process.add_request(request(f"r{i}", [i, 1], max_tokens=5 + i, n=1 + i % 3))
            await seen.until(lambda: len(seen.finished) == 39)
            for i in range(20):
                for index in range(1 + i % 3):
                    assert seen.tokens[f"r{i}", index] == completion([i, 1], 5 + i, index)
            assert max(seen.batches) > 1
            stats = await process.stats()
            assert stats.running == 0
            assert stats.tokens_generated == 1 + sum((5 + i) * (1 + i % 3) for i in range(20))
            await process.reset_prefix_cache()
            assert process.death is None

    run(main())


def test_steps_are_metered() -> None:
    async def main() -> None:
        async with engine(step_ms=20) as (process, seen, _):
            process.add_request(request("r", [1, 2], max_tokens=5))
            await seen.until(lambda: ("r", 0) in seen.finished)
            stats = await process.stats()
            assert stats.step_seconds is not None
            assert stats.step_tokens is not None
            assert stats.step_seconds.count == stats.step_tokens.count == 5
            assert stats.step_seconds.total >= 5 * 0.02
            assert stats.step_tokens.total == 5  # the fake computes prompts as they come
            await process.check_integrity()

    run(main())


def test_signs_of_life_and_an_end_with_a_reason() -> None:
    async def main() -> None:
        async with engine() as (process, seen, _):
            process.add_request(request("r", [1], salt="hang"))
            async with asyncio.timeout(PATIENCE_S):
                while process.step_s < 1 or process.silent_s >= 2:
                    await asyncio.sleep(0.05)
            os.kill(process.pid, signal.SIGSTOP)
            async with asyncio.timeout(PATIENCE_S):
                while process.silent_s < 2:
                    await asyncio.sleep(0.05)
            assert process.connected
            process.kill("it hung, and was killed")
            await seen.until(lambda: seen.deaths)
            assert str(seen.deaths[0]) == "it hung, and was killed"
            assert not process.connected

    run(main())


def test_a_refusal_touches_only_its_request() -> None:
    async def main() -> None:
        async with engine() as (process, seen, _):
            process.add_request(request("bad", [1], temperature=-1.0))
            process.add_request(request("good", [1], max_tokens=3))
            await seen.until(lambda: seen.refusals and ("good", 0) in seen.finished)
            (refused,) = seen.refusals
            assert refused.request_id == "bad"
            assert refused.param == "temperature"
            assert "temperature must be in" in refused.message

    run(main())


def test_abort_stops_one_sequence_of_a_request() -> None:
    async def main() -> None:
        async with engine(step_ms=20) as (process, seen, _):
            process.add_request(request("r", [1], max_tokens=60, n=2))
            await seen.until(lambda: len(seen.tokens.get(("r", 0), [])) >= 5)
            process.abort(Abort(["r", "unknown"], 0))
            await seen.until(lambda: ("r", 1) in seen.finished)
            assert seen.finished["r", 0] is FinishReason.ABORT
            assert len(seen.tokens["r", 0]) < 60
            assert seen.tokens["r", 1] == completion([1], 60, 1)

    run(main())


def test_abort_stops_a_request_while_others_run() -> None:
    async def main() -> None:
        async with engine(step_ms=10) as (process, seen, _):
            process.add_request(request("long", [1], max_tokens=500))
            process.add_request(request("short", [2], max_tokens=30))
            await seen.until(lambda: len(seen.tokens.get(("long", 0), [])) >= 5)
            process.abort(Abort(["long", "unknown"]))
            await seen.until(lambda: ("long", 0) in seen.finished)
            assert seen.finished["long", 0] is FinishReason.ABORT
            await seen.until(lambda: ("short", 0) in seen.finished)
            assert seen.tokens["short", 0] == completion([2], 30)
            assert (await process.stats()).running == 0

    run(main())


def test_what_the_engine_logs_is_in_the_log_of_the_front_end(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        async with engine("support.fake_core:load_logging"):
            pass

    run(main())
    records = [each for each in caplog.records if each.name == "penstock.kvstore"]
    assert [each.levelname for each in records] == ["WARNING", "ERROR"]
    assert records[0].getMessage() == "no blocks are kept in a folder\\udcff"
    assert "a block was lost\nTraceback" in records[1].getMessage()
    assert "OSError: the disk is gone" in records[1].getMessage()
    assert "blocks" not in capfd.readouterr().err
