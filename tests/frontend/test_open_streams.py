"""The open requests of an engine: ids, ends, and what comes too late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.errors import EngineDeadError, OverloadedError, RequestError
from penstock.frontend.open_sequences import OpenSequences
from penstock.frontend.open_streams import OpenStreams
from penstock.frontend.output_processor import OutputProcessor
from penstock.frontend.pacing import Pacer
from penstock.frontend.stream import OutputStream
from penstock.interface.messages import (
    EngineRequest,
    FinishReason,
    RequestOptions,
    SequenceUpdate,
)
from penstock.sampling.params import SamplingParams

PATIENCE_S = 60.0


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def streams_of(limit: int | None = None) -> tuple[OpenStreams, OpenSequences]:
    opened = OpenSequences(limit)
    return OpenStreams(OutputProcessor(None), opened, Pacer()), opened


def asked(name: str, n: int = 1) -> EngineRequest:
    params = SamplingParams(n=n, skip_special_tokens=False)
    return EngineRequest.of(name, [1, 2], params, RequestOptions())


def token(stream: OutputStream, token_id: int, last: bool = False) -> SequenceUpdate:
    reason = FinishReason.LENGTH if last else None
    return SequenceUpdate(stream.wire_id, 0, [token_id], finish_reason=reason)


def test_an_id_is_free_again_when_its_request_has_ended() -> None:
    async def main() -> None:
        streams, opened = streams_of()
        first = streams.open(asked("r"), None)
        with pytest.raises(RequestError, match="'r' is in use"):
            streams.open(asked("r"), None)
        streams.update([token(first, 5), token(first, 6, last=True)])
        assert (await first.next()).outputs[0].token_ids == [5, 6]
        assert (streams.find("r"), opened.count) == (None, 0)
        second = streams.open(asked("r"), None)
        assert second.wire_id != first.wire_id
        assert streams.holds(second)
        assert not streams.holds(first)

    run(main)


def test_what_comes_late_reaches_no_later_request_of_the_same_id() -> None:
    async def main() -> None:
        streams, _ = streams_of()
        first = streams.open(asked("r"), None)
        (left,) = streams.forget(first)
        assert left.outputs[0].finish_reason == "abort"
        second = streams.open(asked("r"), None)
        streams.refuse(first.wire_id, RequestError("too late"))
        assert streams.update([token(first, 7)]) == []
        streams.update([token(second, 8, last=True)])
        assert (await second.next()).outputs[0].token_ids == [8]

    run(main)


def test_a_refusal_ends_its_request_alone() -> None:
    async def main() -> None:
        streams, opened = streams_of()
        bad, good = streams.open(asked("bad", n=3), None), streams.open(asked("good"), None)
        assert opened.count == 4
        streams.refuse(bad.wire_id, RequestError("not so", "n"))
        with pytest.raises(RequestError, match="not so"):
            await bad.next()
        assert (streams.find("good"), opened.count) == (good, 1)

    run(main)


def test_a_death_fails_all_that_are_open_after_what_they_have() -> None:
    async def main() -> None:
        streams, opened = streams_of()
        open_ones = [streams.open(asked(name), None) for name in ("a", "b")]
        streams.update([token(open_ones[0], 3)])
        streams.fail(EngineDeadError("gone"))
        assert (await open_ones[0].next()).outputs[0].token_ids == [3]
        for stream in open_ones:
            with pytest.raises(EngineDeadError, match="gone"):
                await stream.next()
        assert opened.count == 0

    run(main)


def test_where_the_limit_is_reached_nothing_is_opened() -> None:
    async def main() -> None:
        streams, opened = streams_of(limit=2)
        streams.open(asked("a", n=2), None)
        with pytest.raises(OverloadedError):
            streams.open(asked("b"), None)
        assert (streams.matching("b"), opened.count) == ([], 2)

    run(main)


def test_ids_are_matched_whole_or_before_a_hyphen() -> None:
    async def main() -> None:
        streams, _ = streams_of()
        for name in ("cmpl-1", "cmpl-1-0", "cmpl-1-1", "cmpl-10"):
            streams.open(asked(name), None)
        assert streams.matching("cmpl-1") == ["cmpl-1", "cmpl-1-0", "cmpl-1-1"]

    run(main)
