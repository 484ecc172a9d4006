"""Requests that a decode engine holds back for a handover, and prompts that are not handed over."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.bitwise import prompt
from support.handed import (
    PROMPT,
    Answers,
    FakePrefill,
    complete,
    connected,
    decoding,
    handovers,
    request,
    served,
    until,
)
from support.needs import needs_native

from penstock.cache.geometry import BLOCK_SIZE
from penstock.config import EngineConfig
from penstock.engine.handover.handshake import Introduction
from penstock.engine.handover.wire import Beat
from penstock.errors import RequestError
from penstock.interface.messages import FinishReason
from penstock.peers.channel import Channel

pytestmark = needs_native


def test_held_requests_are_aborted_and_their_ids_are_taken(
    asked: EngineConfig, expected: Answers, introduction: Introduction
) -> None:
    seen = []

    def handle(channel: Channel[Any]) -> None:
        while True:
            seen.append(channel.receive().message)

    fake = FakePrefill(handle, introduction)
    with decoding(asked, fake.address) as decode:
        connected(decode)
        decode.add_request(request("r", PROMPT, n=2))
        with pytest.raises(RequestError, match="in use"):
            decode.add_request(request("r", PROMPT))
        with pytest.raises(RequestError):
            decode.add_request(request("long", PROMPT * 10))
        assert decode.stats().waiting == 1
        updates = decode.abort(["r", "unknown"])
        assert [(u.request_id, u.index) for u in updates] == [("r", 0), ("r", 1)]
        assert {u.finish_reason for u in updates} == {FinishReason.ABORT}
        assert handovers(decode).open == 0
        until(lambda: len(seen) == 2)  # Ask and Cancel
        # A reset gives the request up to this engine.
        decode.add_request(request("r", PROMPT))
        decode.reset_prefix_cache()
        assert served(decode, 1) == expected
        assert handovers(decode).failed == 1
    fake.close()


def test_prompts_that_do_not_pay_are_computed_here(
    asked: EngineConfig, introduction: Introduction
) -> None:
    def handle(channel: Channel[Any]) -> None:
        channel.send(Beat(100_000, 1000.0))
        channel.receive()

    fake = FakePrefill(handle, introduction)
    with decoding(asked, fake.address, least_tokens=160, max_wait_s=200.0) as decode:
        connected(decode)
        complete(decode, [request("short", PROMPT[:150])])
        complete(decode, [request("tiny", PROMPT[:BLOCK_SIZE])])
        complete(decode, [request("rows", prompt(8, 200), prompt_logprobs=1)])
        assert handovers(decode).declined == 1  # the others are no prompts to hand over
        # Of the long one, so much is cached that the rest is short.
        complete(decode, [request("long", PROMPT)])
        assert handovers(decode).declined == 2
    with decoding(asked, fake.address, max_wait_s=60.0) as decode:
        connected(decode)
        until(lambda: decode._peers[0].load.queued_tokens == 100_000)
        complete(decode, [request("late", PROMPT)])
        assert handovers(decode).declined == 1
    fake.close()


def test_a_full_cache_takes_no_handover(asked: EngineConfig, introduction: Introduction) -> None:
    """A prompt without room beside the running sequences waits, and is computed here."""
    small = msgspec.structs.replace(asked, kv_cache_bytes=None, max_model_len=256, max_num_seqs=1)

    def handle(channel: Channel[Any]) -> None:
        channel.receive()

    fake = FakePrefill(handle, introduction)
    with decoding(small, fake.address) as decode:
        connected(decode)
        decode.add_request(request("runs", [5], max_tokens=250))
        for _ in range(100):
            decode.step()
        assert decode._core.num_running == 1
        decode.add_request(request("r", PROMPT))
        assert handovers(decode).declined == 1
        served(decode, 2)
    fake.close()
