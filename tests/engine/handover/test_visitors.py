"""What a prefill engine is asked for by others than its decode engines, or by those that die."""

from __future__ import annotations

import socket
from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from support.bitwise import prompt
from support.handed import (
    LLAMA,
    apart,
    complete,
    config,
    folder_of,
    handovers,
    plain,
    prefilling,
    request,
    until,
)
from support.needs import needs_native

from penstock.cache.geometry import BLOCK_SIZE
from penstock.cache.prefix import chain_keys
from penstock.config import EngineConfig
from penstock.engine.handover.handshake import Introduction, RefusedError
from penstock.engine.handover.link import Link, LinkEndedError
from penstock.engine.handover.prefill import PrefillCore
from penstock.engine.handover.wire import (
    PROTOCOL,
    Ask,
    Beat,
    Blocks,
    Cancel,
    Ended,
    FromPrefill,
    Hello,
    NotTaken,
)
from penstock.errors import ConfigError, RequestError
from penstock.handover_config import Address, DecodeRole, PrefillRole
from penstock.processes.frames import WireError

pytestmark = needs_native
PROMPT = prompt(7, 20 * BLOCK_SIZE)
TOKENS = array("i", PROMPT)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    return config(folder_of(tmp_path_factory.mktemp("model"), LLAMA))


@pytest.fixture(scope="module")
def introduction(asked: EngineConfig) -> Introduction:
    core, _ = apart(asked, DecodeRole(prefill=(Address("127.0.0.1", 1),)))
    its: Introduction = core._peers[0]._introduction
    core.close()
    return its


@pytest.fixture
def prefill(asked: EngineConfig) -> Iterator[tuple[PrefillCore, Address]]:
    with prefilling(asked) as found:
        yield found
        until(lambda: handovers(found[0]).open == 0)


def connect(address: Address) -> Link:
    sock = socket.create_connection((address.host, address.port), timeout=30)
    return Link(sock, FromPrefill, 1 << 20)


def visit(address: Address, introduction: Introduction) -> Link:
    link = connect(address)
    introduction.shake(link)
    link.set_timeout(30)
    return link


def ask(number: int = 0, tokens: Any = TOKENS, first: int = 0, **more: Any) -> Ask:
    return Ask(number=number, token_ids=tokens.tobytes(), first=first, **more)


def received(link: Link) -> tuple[list[Blocks], Ended]:
    """What comes until a handover ends."""
    pieces = []
    while True:
        message, _ = link.receive()
        if isinstance(message, Blocks):
            pieces.append(message)
        elif isinstance(message, Ended):
            return pieces, message
        else:
            assert isinstance(message, Beat)


def left(link: Link) -> None:
    """The connection is ended by the other side, soon."""
    with pytest.raises((LinkEndedError, OSError, WireError)):
        received(link)
    link.set_timeout(0.01)  # that was its end, and no timeout
    with pytest.raises((LinkEndedError, ConnectionError, WireError)):
        link.receive()


def test_blocks_come_while_the_prompt_is_computed(
    prefill: tuple[PrefillCore, Address], introduction: Introduction
) -> None:
    link = visit(prefill[1], introduction)
    link.send(ask())
    pieces, ended = received(link)
    assert ended == Ended(0)
    assert [piece.first for piece in pieces] == list(range(0, 20, 2))  # a step has 64 tokens
    assert {len(piece.checksums) for piece in pieces} == {2}
    # Once they are cached they come at once; those that are there already do not.
    link.send(ask(1, first=15))
    pieces, ended = received(link)
    assert [(piece.first, len(piece.checksums)) for piece in pieces] == [(15, 5)]
    link.close()


def test_it_answers_its_own_requests_meanwhile(
    asked: EngineConfig, introduction: Introduction
) -> None:
    alone = plain(asked)
    expected = complete(alone, [request("r", PROMPT[:90])])
    alone.close()
    core, station = apart(asked, PrefillRole(listen=Address("127.0.0.1", 0)))
    assert station.listener is not None
    link = visit(Address("127.0.0.1", station.listener.port), introduction)
    link.send(ask())
    until(lambda: core.has_work)
    assert complete(core, [request("r", PROMPT[:90])]) == expected
    with pytest.raises(RequestError, match="engine's own"):
        core.add_request(request("handover:1", [1, 2]))
    while handovers(core).open:
        core.step()
    assert received(link)[1] == Ended(0)
    link.close()
    core.close()


def test_those_that_leave_are_forgotten(
    prefill: tuple[PrefillCore, Address], introduction: Introduction
) -> None:
    core, address = prefill
    for i in range(3):
        link = visit(address, introduction)
        link.send(ask(0, array("i", prompt(20 + i, 30 * BLOCK_SIZE))))
        link.send(Cancel(17))
        link.close()
    link = visit(address, introduction)
    link.send(ask(0, array("i", prompt(30, 30 * BLOCK_SIZE))))
    link.send(Cancel(0))
    link.send(ask(1))
    assert received(link)[1] == Ended(1)
    until(lambda: handovers(core).peers == 1)
    link.close()
    until(lambda: handovers(core).peers == 0)
    until(lambda: core.stats().running == core.stats().waiting == 0)


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\0", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", bytes(4), (100).to_bytes(4, "little")],
)
def test_those_that_are_no_decode_engines_are_left(
    garbage: bytes, prefill: tuple[PrefillCore, Address], introduction: Introduction
) -> None:
    core, address = prefill
    with socket.create_connection((address.host, address.port)) as sock:
        sock.sendall(garbage)
    link = visit(address, introduction)
    link.send(ask())
    assert received(link)[1] == Ended(0)
    link.close()
    until(lambda: handovers(core).peers == 0)


BAD = [
    ask(0, first=20),
    ask(0, first=-1),
    ask(0, TOKENS[:-1]),
    ask(0, array("i")),
    Ended(0),
    Beat(0, 0.0),
]


@pytest.mark.parametrize("message", BAD)
def test_what_no_decode_engine_says_ends_the_connection(
    message: Any, prefill: tuple[PrefillCore, Address], introduction: Introduction
) -> None:
    link = visit(prefill[1], introduction)
    link.send(message)
    left(link)
    link.close()


def test_numbers_ascend(prefill: tuple[PrefillCore, Address], introduction: Introduction) -> None:
    link = visit(prefill[1], introduction)
    link.send(ask(4))
    link.send(ask(4))
    left(link)
    link.close()


@pytest.mark.parametrize(
    ("tokens", "why"),
    [
        (array("i", PROMPT[:-1] + [300]), "300"),
        (array("i", PROMPT[:-1] + [-5]), "-5"),
        (array("i", prompt(1, 33 * BLOCK_SIZE)), "1024"),
    ],
    ids=["unknown token", "negative token", "too long"],
)
def test_prompts_that_are_none_are_refused(
    tokens: Any, why: str, prefill: tuple[PrefillCore, Address], introduction: Introduction
) -> None:
    link = visit(prefill[1], introduction)
    link.send(ask(0, tokens))
    pieces, ended = received(link)
    assert not pieces
    assert why in ended.error
    link.close()


def test_another_protocol_is_refused_by_name(
    prefill: tuple[PrefillCore, Address], introduction: Introduction
) -> None:
    link = connect(prefill[1])
    link.set_timeout(30)
    link.send(
        Hello(
            protocol=PROTOCOL + 1,
            side="decode",
            nonce=bytes(16),
            keyed=False,
            identity=introduction.identity,
            group_bytes=introduction.group_bytes,
        )
    )
    assert isinstance(link.receive()[0], Hello)
    message, _ = link.receive()
    assert message == NotTaken(f"the decode engine has protocol {PROTOCOL + 1}, not {PROTOCOL}")
    link.close()
    link = connect(prefill[1])
    with pytest.raises(RefusedError, match="both are prefill engines"):
        replace(introduction, side="prefill").shake(link)
    link.close()
    link = connect(prefill[1])
    with pytest.raises(RefusedError, match=r"has blocks of \(.*\) bytes, not"):
        replace(introduction, group_bytes=(7,)).shake(link)
    link.close()


def test_frames_are_of_their_connection(asked: EngineConfig, introduction: Introduction) -> None:
    """With a secret, a message that was recorded or changed ends the connection."""
    key = b"a secret of some length"
    with prefilling(asked, key=key) as (core, address):
        link = visit(address, replace(introduction, key=key))
        link.send(ask())
        assert received(link)[1] == Ended(0)
        body = msgspec.msgpack.encode(ask(1))
        link._socket.sendall(len(body).to_bytes(4, "little") + body + bytes(16))
        left(link)
        link.close()
        until(lambda: handovers(core).peers == 0)


def test_blocks_are_those_of_the_cache(
    prefill: tuple[PrefillCore, Address], introduction: Introduction, asked: EngineConfig
) -> None:
    alone = plain(asked)
    complete(alone, [request("r", PROMPT)])
    assert alone.blocks is not None
    wanted = alone.blocks.read(chain_keys("", TOKENS, 19, BLOCK_SIZE), 0)
    alone.close()
    link = visit(prefill[1], introduction)
    link.send(ask())
    found = []
    while True:
        message, content = link.receive()
        if isinstance(message, Ended):
            break
        if content is not None:
            found.append(content)
    whole = np.concatenate(found)
    np.testing.assert_array_equal(whole[: len(wanted.data)], wanted.data)
    link.close()


def test_an_address_that_is_taken_is_refused(
    asked: EngineConfig, prefill: tuple[PrefillCore, Address]
) -> None:
    with pytest.raises(ConfigError, match=r"--handover-listen 127.0.0.1:.*in use"):
        apart(asked, PrefillRole(listen=prefill[1]))
