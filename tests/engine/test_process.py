"""The engine in its own process: frames, start, requests, faults and ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from fake_core import VOCAB, completion
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config import EngineConfig
from penstock.engine.messages import Abort, EngineRequest, FinishReason, SequenceUpdate
from penstock.engine.process import EngineProcess
from penstock.engine.spawn import EngineChild
from penstock.engine.wire import (
    HEADER,
    FrameReader,
    Ready,
    Refused,
    ToEngine,
    Updates,
    WireError,
    encode_frame,
    encode_updates,
)
from penstock.errors import ConfigError, EngineDeadError, PenstockError, WeightError
from penstock.sampling.params import SamplingParams


def request(name: str, prompt: list[int], **params: Any) -> EngineRequest:
    salt = params.pop("salt", "")
    return EngineRequest(
        request_id=name,
        prompt_token_ids=prompt,
        params=SamplingParams(**params),
        cache_salt=salt,
    )


class Recorder:
    """A listener that keeps everything and wakes whoever waits for a condition."""

    def __init__(self) -> None:
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.finished: dict[tuple[str, int], FinishReason] = {}
        self.refusals: list[Refused] = []
        self.batches: list[int] = []
        self.tokenizer_path: str | None = None
        self.deaths: list[PenstockError] = []
        self._changed = asyncio.Event()

    def located(self, tokenizer_path: str) -> None:
        self.tokenizer_path = tokenizer_path

    def updated(self, updates: list[SequenceUpdate]) -> None:
        self.batches.append(len(updates))
        for update in updates:
            key = (update.request_id, update.index)
            self.tokens.setdefault(key, []).extend(update.token_ids)
            if update.finish_reason is not None:
                self.finished[key] = update.finish_reason
        self._changed.set()

    def refused(self, refused: Refused) -> None:
        self.refusals.append(refused)
        self._changed.set()

    def died(self, error: PenstockError) -> None:
        self.deaths.append(error)
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def engine(
    core: str = "fake_core:load", step_ms: int = 0
) -> AsyncIterator[tuple[EngineProcess, Recorder, Ready]]:
    recorder = Recorder()
    child = EngineChild.spawn(EngineConfig(seed=step_ms), core)
    process = await EngineProcess.connect(child, recorder)
    try:
        yield process, recorder, await process.ready(20)
    finally:
        await process.aclose()
        assert child.process.returncode is not None


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 30))


# Frames


@given(st.lists(st.text(max_size=20), max_size=8), st.lists(st.integers(1, 40), min_size=1))
@settings(max_examples=50, deadline=None)
def test_frames_survive_any_cut_of_the_stream(names: list[str], cuts: list[int]) -> None:
    messages = [Abort([name, name[::-1]]) for name in names]
    stream = b"".join(encode_frame(message) for message in messages)
    reader, received, at = FrameReader(ToEngine), [], 0
    while at < len(stream):
        cut = cuts[len(received) % len(cuts)]
        received += reader.feed(stream[at : at + cut])
        at += cut
    assert received == messages
    assert not reader.in_frame


def test_a_frame_over_the_limit_is_refused_on_both_sides() -> None:
    big = request("r", list(range(1000)))
    with pytest.raises(WireError, match=r"EngineRequest message takes .* more than the 100"):
        encode_frame(big, limit=100)
    with pytest.raises(WireError, match="announces"):
        FrameReader(ToEngine, limit=100).feed(encode_frame(big))


@pytest.mark.parametrize(
    "body",
    [b"\xc1", b"", msgspec.msgpack.encode({"type": "nonsense"}), b"\x92\x01", b"\xa2\xff\xfe"],
)
def test_a_frame_that_holds_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="no known message"):
        FrameReader(ToEngine).feed(HEADER.pack(len(body)) + body)


def test_the_updates_of_a_step_split_only_when_they_must() -> None:
    updates = [
        SequenceUpdate(request_id=f"r{i}", index=0, token_ids=list(range(count)))
        for i, count in enumerate([3, 500, 3, 3])
    ]
    frames, failed = encode_updates(updates)
    assert len(frames) == 1
    assert failed == []
    frames, failed = encode_updates(updates, limit=300)
    assert [update.request_id for update, _ in failed] == ["r1"]
    reader = FrameReader(Updates)
    sent = [u for frame in frames for m in reader.feed(frame) for u in m.updates]  # type: ignore[attr-defined]
    assert [update.request_id for update in sent] == ["r0", "r2", "r3"]


def test_every_message_keeps_its_value() -> None:
    original = request(
        "r", [1, 2], temperature=0.5, seed=2**64 - 1, logit_bias={5: -1.5}, stop=("a", "b"), n=3
    )
    assert FrameReader(ToEngine).feed(encode_frame(original)) == [original]


# Requests


def test_requests_come_back_with_the_tokens_of_the_core() -> None:
    async def main() -> None:
        async with engine() as (process, seen, ready):
            assert seen.tokenizer_path == "nowhere"
            assert ready.model.vocab_size == VOCAB
            names = [phase.name for phase in ready.phases]
            assert names[0] == "engine python"
            assert names[-1] == "first token"
            assert all(0 <= phase.seconds < 10 for phase in ready.phases)
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
            async with asyncio.timeout(10):
                while process.step_s < 1:
                    await asyncio.sleep(0.05)
            assert process.silent_s < 2
            os.kill(process.pid, signal.SIGSTOP)
            async with asyncio.timeout(10):
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
        async with engine(step_ms=2) as (process, seen, _):
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
        async with engine(step_ms=2) as (process, seen, _):
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


# Starts that fail


@pytest.mark.parametrize(
    ("core", "error", "message"),
    [
        ("fake_core:load_fails", WeightError, "^layer 3 is missing; download"),
        ("fake_core:load_crashes", EngineDeadError, "ZeroDivisionError: a defect in a loader"),
        ("fake_core:load_dies", EngineDeadError, "was ended by SIGKILL; if nobody killed it"),
        ("fake_core:nothing", ConfigError, "cannot be imported"),
        ("no_such_module:load", ConfigError, "cannot be imported"),
        ("fake_core", ConfigError, "module:function"),
    ],
)
def test_a_failed_start_raises_the_cause(core: str, error: type[Exception], message: str) -> None:
    async def main() -> None:
        with pytest.raises(error, match=message) as caught:
            async with engine(core):
                raise AssertionError("it started")
        assert type(caught.value) is error

    run(main())


def test_a_start_that_hangs_is_given_up() -> None:
    async def main() -> None:
        child = EngineChild.spawn(EngineConfig(), "fake_core:load_hangs")
        process = await EngineProcess.connect(child, Recorder())
        with pytest.raises(EngineDeadError, match=r"not ready after 0\.3 s"):
            await process.ready(0.3)
        assert child.process.returncode == -signal.SIGKILL

    run(main())


# Ends


@pytest.mark.parametrize(
    ("salt", "message"), [("crash", "RuntimeError: the fake core"), ("kill", "SIGKILL")]
)
def test_death_is_told_once_with_its_cause(salt: str, message: str) -> None:
    async def main() -> None:
        async with engine() as (process, seen, _):
            process.add_request(request("r", [1], salt=salt))
            await seen.until(lambda: seen.deaths)
            assert message in str(seen.deaths[0])
            assert process.death is seen.deaths[0]
            with pytest.raises(EngineDeadError, match=message):
                process.add_request(request("s", [1]))
            with pytest.raises(EngineDeadError, match=message):
                await process.stats()
        assert len(seen.deaths) == 1

    run(main())


def test_a_query_that_waits_when_the_engine_dies_is_answered() -> None:
    async def main() -> None:
        async with engine(step_ms=200) as (process, seen, _):
            process.add_request(request("r", [1]))
            query = asyncio.ensure_future(process.stats())
            await asyncio.sleep(0)
            os.kill(process.pid, signal.SIGKILL)
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await query
            await seen.until(lambda: seen.deaths)

    run(main())


def test_garbage_on_the_socket_ends_the_engine_with_a_reason() -> None:
    async def main() -> None:
        async with engine() as (process, seen, _):
            assert process._transport is not None
            process._transport.write(HEADER.pack(4) + b"\xc1\xc1\xc1\xc1")
            await seen.until(lambda: seen.deaths)
            assert "no known message" in str(seen.deaths[0])

    run(main())


def test_close_ends_the_engine_in_order_and_ctrl_c_does_not() -> None:
    async def main() -> None:
        async with engine() as (process, seen, _):
            os.kill(process.pid, signal.SIGINT)
            await asyncio.sleep(0.05)
            assert (await process.stats()).running == 0
            began = time.monotonic()
            await process.aclose()
            assert time.monotonic() - began < 3
            assert process._child.process.returncode == 0
            assert str(process.death) == "the engine was closed"
            await process.aclose()
        assert len(seen.deaths) == 1

    run(main())


def test_the_engine_dies_with_its_parent() -> None:
    script = textwrap.dedent("""
        import asyncio, os, signal, sys
        from penstock.config import EngineConfig
        from penstock.engine.process import EngineProcess
        from penstock.engine.spawn import EngineChild
        from penstock.engine.messages import EngineRequest
        from penstock.sampling.params import SamplingParams

        class Silent:
            def located(self, path): pass
            def updated(self, updates): pass
            def refused(self, refused): pass
            def died(self, error): pass

        async def main():
            child = EngineChild.spawn(EngineConfig(seed=2000), "fake_core:load")
            process = await EngineProcess.connect(child, Silent())
            await process.ready()
            process.add_request(EngineRequest(
                request_id="r", prompt_token_ids=[1], params=SamplingParams()))
            await asyncio.sleep(0.1)
            print(process.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)  # while the engine is inside a step of 2 s

        asyncio.run(main())
    """)
    path = os.pathsep.join(entry for entry in sys.path if entry)
    parent = subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        timeout=20,
        check=False,
    )
    assert parent.returncode == -signal.SIGKILL
    pid = int(parent.stdout)
    deadline = time.monotonic() + 10
    while _runs(pid):
        assert time.monotonic() < deadline, "the engine outlived its parent"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    """Whether the process runs; a zombie that init has not collected does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_idle_engine_waits_without_work() -> None:
    async def main() -> None:
        async with engine() as (process, _, _ready):
            before = (await process.stats()).steps
            spent = []
            # An engine that spins does so in every window; a fault-in or a sample of the kernel's
            # coarse clock hits one.
            for _ in range(5):
                ticks = _cpu_ticks(process.pid)
                await asyncio.sleep(0.3)
                spent.append(_cpu_ticks(process.pid) - ticks)
            assert (await process.stats()).steps == before
            assert min(spent) <= 2

    run(main())


def _cpu_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
