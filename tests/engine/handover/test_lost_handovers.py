"""Prefill engines that die, hang or send wrong data: the decode engine computes the prompt itself,
and its tokens are the same."""

from __future__ import annotations

import logging
import re
import time
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.handed import (
    PROMPT,
    Answers,
    FakePrefill,
    complete,
    connected,
    decoding,
    handovers,
    request,
    until,
)
from support.needs import needs_native

from penstock.cache.geometry import BLOCK_SIZE
from penstock.cache.prefix import chain_keys
from penstock.config import EngineConfig
from penstock.engine.core import EngineCore
from penstock.engine.handover import peer as peer_module
from penstock.engine.handover.handshake import Introduction
from penstock.engine.handover.wire import Ask, Beat, Blocks, Ended
from penstock.peers.channel import Channel

pytestmark = needs_native
WHOLE = (len(PROMPT) - 1) // BLOCK_SIZE
KEYS = chain_keys("", array("i", PROMPT), WHOLE, BLOCK_SIZE)


def send(
    source: EngineCore, channel: Channel[Any], number: int, first: int, end: int, flip: int = -1
) -> None:
    """Send blocks ``first`` to ``end - 1`` of the prompt; a bit of byte ``flip`` is wrong, unless
    that is negative."""
    assert source.blocks is not None
    content = source.blocks.read(KEYS[first:end], 0)
    if flip >= 0:
        content.data[flip] ^= 1
    sums = tuple(content.checksums.tolist())
    channel.send(Blocks(number=number, group=0, first=first, checksums=sums), content.data)


def group_bytes(source: EngineCore) -> int:
    """Bytes of a block of the only group."""
    assert source.blocks is not None
    return source.blocks.group_bytes[0]


Behaviour = Callable[[EngineCore, Channel[Any], Ask], None]


def dies(source: EngineCore, channel: Channel[Any], ask: Ask) -> None:
    send(source, channel, ask.number, 0, 3)
    channel.close()


def babbles(source: EngineCore, channel: Channel[Any], ask: Ask) -> None:
    channel._sock.sendall(np.random.default_rng(1).bytes(100_000))


def announces_too_many_blocks(source: EngineCore, channel: Channel[Any], ask: Ask) -> None:
    channel.send(Blocks(number=ask.number, group=0, first=0, checksums=(7,) * 2000))


def damages_a_block(source: EngineCore, channel: Channel[Any], ask: Ask) -> None:
    send(source, channel, ask.number, 0, 2)
    send(source, channel, ask.number, 2, WHOLE, flip=1234)
    channel.send(Ended(ask.number))


def sends_what_is_no_part(source: EngineCore, channel: Channel[Any], ask: Ask) -> None:
    content = np.zeros(3 * group_bytes(source), np.uint8)
    channel.send(Blocks(number=ask.number, group=0, first=4, checksums=(0, 0, 0)), content)


def sends_a_group_too_many(source: EngineCore, channel: Channel[Any], ask: Ask) -> None:
    channel.send(Blocks(number=ask.number, group=1, first=0, checksums=()))


def sends_no_checksum(source: EngineCore, channel: Channel[Any], ask: Ask) -> None:
    content = np.zeros(group_bytes(source), np.uint8)
    channel.send(Blocks(number=ask.number, group=0, first=0, checksums=(1 << 40,)), content)


def gives_up(source: EngineCore, channel: Channel[Any], ask: Ask) -> None:
    send(source, channel, ask.number, 0, 4)
    channel.send(Ended(ask.number, "the prompt could not be computed"))


def ends_with_nothing(source: EngineCore, channel: Channel[Any], ask: Ask) -> None:
    channel.send(Ended(ask.number))


def hangs(source: EngineCore, channel: Channel[Any], ask: Ask) -> None:
    send(source, channel, ask.number, 0, 1)
    channel.receive()


def beats_and_computes_nothing(source: EngineCore, channel: Channel[Any], ask: Ask) -> None:
    while True:
        channel.send(Beat(1000, 0.0))
        time.sleep(0.05)


def sends_another_s_blocks(source: EngineCore, channel: Channel[Any], ask: Ask) -> None:
    """Send the blocks as those of another handover, which nobody asked for, and then end both."""
    send(source, channel, ask.number + 17, 0, WHOLE)
    channel.send(Ended(ask.number + 17))
    channel.send(Ended(ask.number))


LOST: list[tuple[Behaviour, int, str]] = [
    (dies, 3, "closed"),
    (babbles, 0, "none of Penstock's"),
    (announces_too_many_blocks, 0, "2000 blocks of 12288 bytes come with 0 bytes"),
    (damages_a_block, 2, "block 0 of 4 is not what its checksum says"),
    (sends_what_is_no_part, 0, "blocks 4 to 7 came of a prompt of 6"),
    (sends_a_group_too_many, 0, "no group 1"),
    (sends_no_checksum, 0, "no number of 32 bits"),
    (gives_up, 4, "could not be computed"),
    (hangs, 1, "nothing has come from it"),
    (beats_and_computes_nothing, 0, "no block has come for 0.4 s"),
]


@pytest.mark.parametrize(("behaves", "blocks", "why"), LOST, ids=[b.__name__ for b, _, _ in LOST])
def test_the_prompt_is_computed_here(
    behaves: Behaviour,
    blocks: int,
    why: str,
    asked: EngineConfig,
    source: EngineCore,
    expected: Answers,
    introduction: Introduction,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_module, "SILENCE_S", 0.5)
    caplog.set_level(logging.WARNING, "penstock.handover")

    def handle(channel: Channel[Any]) -> None:
        message = channel.receive().message
        assert isinstance(message, Ask)
        behaves(source, channel, message)
        channel.receive()

    fake = FakePrefill(handle, introduction)
    with decoding(asked, fake.address, timeout_s=0.4 if "beats" in behaves.__name__ else 60.0) as d:
        connected(d)
        assert complete(d, [request("r", PROMPT)]) == expected
        found = handovers(d)
        assert (found.completed, found.failed, found.open) == (0, 1, 0)
        assert found.recomputed_tokens == (WHOLE - blocks) * BLOCK_SIZE
        assert found.tokens == blocks * BLOCK_SIZE
    assert caplog.text.count("was not handed over") == 1
    (line,) = [r.getMessage() for r in caplog.records if "was not handed over" in r.getMessage()]
    assert re.search(why, line), line
    fake.close()


@pytest.mark.parametrize("behaves", [ends_with_nothing, sends_another_s_blocks])
def test_an_end_without_blocks_is_an_end(
    behaves: Behaviour,
    asked: EngineConfig,
    source: EngineCore,
    expected: Answers,
    introduction: Introduction,
) -> None:
    def handle(channel: Channel[Any]) -> None:
        message = channel.receive().message
        behaves(source, channel, message)
        channel.receive()

    fake = FakePrefill(handle, introduction)
    with decoding(asked, fake.address) as decode:
        connected(decode)
        assert complete(decode, [request("r", PROMPT)]) == expected
        assert handovers(decode).recomputed_tokens == WHOLE * BLOCK_SIZE
    fake.close()


def test_the_connection_is_made_again(
    asked: EngineConfig, source: EngineCore, expected: Answers, introduction: Introduction
) -> None:
    def handle(channel: Channel[Any]) -> None:
        message = channel.receive().message
        if fake.visits == 1:
            channel.close()
            return
        send(source, channel, message.number, 0, WHOLE)
        channel.send(Ended(message.number))
        channel.receive()

    fake = FakePrefill(handle, introduction)
    with decoding(asked, fake.address) as decode:
        connected(decode)
        assert complete(decode, [request("r", PROMPT)]) == expected
        until(lambda: fake.visits == 2)
        connected(decode)
        decode.reset_prefix_cache()
        assert complete(decode, [request("r", PROMPT)]) == expected
        assert (handovers(decode).completed, handovers(decode).failed) == (1, 1)
    fake.close()
