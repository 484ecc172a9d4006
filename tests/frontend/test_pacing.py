"""When readers are woken, on a clock of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.errors import EngineDeadError
from penstock.frontend.output_processor import OutputProcessor
from penstock.frontend.pacing import SEQUENCE_S, Pacer
from penstock.frontend.stream import OutputStream
from penstock.interface.messages import SequenceUpdate
from penstock.sampling.params import SamplingParams


class Clocked(asyncio.SelectorEventLoop):
    """A loop whose time passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__()

    def time(self) -> float:
        return self.now


class Reader:
    def __init__(self) -> None:
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


def on_clock(test: Callable[[Clocked], object]) -> None:
    loop = Clocked()

    async def main() -> None:
        result = test(loop)
        if asyncio.iscoroutine(result):
            await result

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_all_are_woken_at_once_and_then_after_a_pause() -> None:
    async def test(loop: Clocked) -> None:
        pacer, readers = Pacer(longest_s=10.0), [Reader() for _ in range(4)]
        for reader in readers:
            pacer.grown(reader)
        pacer.flush(100)
        assert [reader.woken for reader in readers] == [1, 1, 1, 1]
        for _ in range(3):  # steps within the pause
            loop.now += SEQUENCE_S * 100 / 4
            pacer.grown(readers[0])
            pacer.flush(100)
            await turns()
        assert readers[0].woken == 1
        loop.now += SEQUENCE_S * 100 / 4 + 1e-6
        await turns()
        assert [reader.woken for reader in readers] == [2, 1, 1, 1]

    on_clock(test)


def test_the_pause_grows_with_the_sequences_to_its_bound() -> None:
    async def test(loop: Clocked) -> None:
        for sequences, longest, pause in (
            (1, 10.0, SEQUENCE_S),
            (64, 10.0, SEQUENCE_S * 64),
            (10_000, 0.05, 0.05),
        ):
            pacer, reader = Pacer(longest), Reader()
            for _ in range(2):
                pacer.grown(reader)
                pacer.flush(sequences)
            loop.now += pause * 0.99
            await turns()
            assert reader.woken == 1
            loop.now += pause * 0.02
            await turns()
            assert reader.woken == 2

    on_clock(test)


def test_without_a_pause_every_step_is_reported() -> None:
    async def test(loop: Clocked) -> None:
        pacer, reader = Pacer(longest_s=0.0), Reader()
        for step in range(1, 4):
            pacer.grown(reader)
            pacer.flush(1000)
            assert reader.woken == step

    on_clock(test)


def test_a_stream_reports_what_it_has_when_it_is_read_and_keeps_it_when_it_fails() -> None:
    async def test(loop: Clocked) -> None:
        processor = OutputProcessor(None, clock=loop.time)
        processor.add_request("a", None, [1], SamplingParams(max_tokens=9))
        stream = OutputStream("a", "a", 1)
        for token in (5, 6):
            (request,), _ = processor.take([SequenceUpdate("a", 0, [token])])
            stream.put(request.output)
        stream.wake()
        assert (await stream.next()).outputs[0].token_ids == [5, 6]
        (request,), _ = processor.take([SequenceUpdate("a", 0, [7])])
        stream.put(request.output)
        stream.freeze()
        processor.abort(["a"])
        stream.fail(EngineDeadError("gone"))
        last = await stream.next()
        assert last.outputs[0].token_ids == [5, 6, 7]
        assert not last.finished
        assert last.outputs[0].finish_reason is None
        with pytest.raises(EngineDeadError):
            await stream.next()

    on_clock(test)
