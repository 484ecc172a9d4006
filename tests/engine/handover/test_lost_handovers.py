"""Prefill engines that die, hang, lie or are others: the prompt is computed where it was asked for,
and no token is another."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from support.bitwise import prompt
from support.handed import (
    LLAMA,
    Answers,
    FakePrefill,
    apart,
    complete,
    config,
    connected,
    decoding,
    folder_of,
    handovers,
    plain,
    prefilling,
    request,
    served,
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
from penstock.errors import RequestError
from penstock.handover_config import DecodeRole
from penstock.interface.messages import FinishReason
from penstock.peers.address import Address
from penstock.peers.channel import Channel

pytestmark = needs_native
PROMPT = prompt(7, 200)
WHOLE = (len(PROMPT) - 1) // BLOCK_SIZE
KEYS = chain_keys("", array("i", PROMPT), WHOLE, BLOCK_SIZE)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    return config(folder_of(tmp_path_factory.mktemp("model"), LLAMA))


@pytest.fixture(scope="module")
def source(asked: EngineConfig) -> Iterator[EngineCore]:
    """An engine that has computed the prompt, and answered it."""
    core = plain(asked)
    yield core
    core.close()


@pytest.fixture(scope="module")
def expected(source: EngineCore) -> Answers:
    return complete(source, [request("r", PROMPT)])


@pytest.fixture(scope="module")
def introduction(asked: EngineConfig) -> Introduction:
    """What a prefill engine of the same model says of itself."""
    core, _ = apart(asked, DecodeRole(prefill=(Address("127.0.0.1", 1),)))
    its: Introduction = core._peers[0]._introduction
    core.close()
    return replace(its, side="prefill")


def send(
    source: EngineCore, channel: Channel[Any], number: int, first: int, end: int, flip: int = -1
) -> None:
    """Send blocks of the prompt, of which a bit may be wrong."""
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
    """Those of a handover that nobody asked for; the one that was asked for comes to its end."""
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


def refused(
    asked: EngineConfig,
    expected: Answers,
    address: Address,
    caplog: pytest.LogCaptureFixture,
    **role: object,
) -> None:
    """A decode engine that does all by itself."""
    with decoding(asked, address, **role) as decode:
        until(lambda: "prompts are computed here meanwhile" in caplog.text)
        assert handovers(decode).peers == 0
        assert complete(decode, [request("r", PROMPT)]) == expected
        found = handovers(decode)
        assert (found.completed, found.failed, found.declined, found.bytes) == (0, 0, 1, 0)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"seed": 1}, "the prefill engine has other weights, or otherwise rounded"),
        ({"dtype": "float32"}, "other weights"),
        ({"quantization": "int8"}, "other weights"),
        ({"kv_cache_dtype": "int8"}, "a KV cache in int8, not bfloat16"),
        ({"backend": "reference", "threads": None}, "kernels reference, not cpu .*any-kernels"),
    ],
    ids=["weights", "type", "rounding", "cache", "kernels"],
)
def test_another_model_is_refused_by_name(
    options: dict[str, object],
    why: str,
    asked: EngineConfig,
    expected: Answers,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "penstock.handover")
    with prefilling(msgspec.structs.replace(asked, **options)) as (prefill, address):
        refused(asked, expected, address, caplog)
        assert handovers(prefill).peers == 0
    assert re.search(f"the prefill engine {address}: it is not taken: .*{why}", caplog.text)


@pytest.mark.parametrize(
    ("theirs", "ours", "why"),
    [
        (
            b"one secret of sixteen bytes",
            b"another one of sixteen bytes",
            "has another secret than",
        ),
        (b"one secret of sixteen bytes", b"", "the prefill engine has a secret and the decode"),
        (b"", b"another one of sixteen bytes", "the decode engine has a secret and the prefill"),
    ],
)
def test_another_secret_is_refused(
    theirs: bytes,
    ours: bytes,
    why: str,
    asked: EngineConfig,
    expected: Answers,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "penstock.handover")
    with prefilling(asked, key=theirs) as (_, address):
        refused(asked, expected, address, caplog, key=ours)
    assert re.search(why, caplog.text)


def test_nobody_listens(
    asked: EngineConfig, expected: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address(*taken.getsockname())
    refused(asked, expected, address, caplog)
    assert caplog.text.count("it cannot be reached") == 1


def test_somebody_else_listens(
    asked: EngineConfig, expected: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = server.accept()
                    sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    sock.close()

        thread = threading.Thread(target=answer)
        thread.start()
        refused(asked, expected, Address(*server.getsockname()), caplog)
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert "is a prefill engine what listens there?" in caplog.text


def test_other_kernels_are_taken_where_that_was_asked_for(asked: EngineConfig) -> None:
    other = msgspec.structs.replace(asked, backend="reference", threads=None)
    with (
        prefilling(other) as (_, address),
        decoding(asked, address, any_kernels=True) as decode,
    ):
        connected(decode)
        answers = complete(decode, [request("r", PROMPT)])
        assert len(answers["r", 0]) == 5
        assert handovers(decode).completed == 1


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


def test_a_full_cache_takes_no_handover(
    asked: EngineConfig, source: EngineCore, introduction: Introduction
) -> None:
    """What does not fit beside those that run is computed here, in its turn."""
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
