"""What a prefill engine is asked for by others than its decode engines, or by those that die."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.bitwise import prompt
from support.handed import (
    apart,
    complete,
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
from penstock.engine.handover.handshake import Introduction
from penstock.engine.handover.prefill import PrefillCore
from penstock.engine.handover.wire import Ask, Beat, Blocks, Cancel, Ended, FromPrefill, Verdict
from penstock.errors import ConfigError, RequestError
from penstock.handover_config import DecodeRole, PrefillRole
from penstock.peers.address import Address
from penstock.peers.channel import Channel, EndedError, Inbound
from penstock.peers.sockets import connect
from penstock.processes.frames import WireError

pytestmark = needs_native
PROMPT = prompt(7, 20 * BLOCK_SIZE)
TOKENS = array("i", PROMPT)


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


def visit(address: Address, introduction: Introduction) -> Channel[Any]:
    inbound = Inbound(FromPrefill, 1 << 20, 1 << 25)
    sock = connect(address, 30)
    channel = introduction.party.greet(sock, inbound, connected=True)
    introduction.exchange(channel)
    channel.set_timeout(30)
    return channel


def ask(number: int = 0, tokens: Any = TOKENS, first: int = 0, **more: Any) -> Ask:
    return Ask(number=number, token_ids=tokens.tobytes(), first=first, **more)


def received(channel: Channel[Any]) -> tuple[list[Blocks], Ended]:
    """What comes until a handover ends."""
    pieces = []
    while True:
        message = channel.receive().message
        if isinstance(message, Blocks):
            pieces.append(message)
        elif isinstance(message, Ended):
            return pieces, message
        else:
            assert isinstance(message, Beat)


def left(channel: Channel[Any]) -> None:
    """The connection is ended by the other side, soon."""
    with pytest.raises((EndedError, OSError, WireError)):
        received(channel)
    channel.set_timeout(0.01)  # that was its end, and no timeout
    with pytest.raises((EndedError, ConnectionError, WireError)):
        channel.receive()


def test_blocks_come_while_the_prompt_is_computed(
    prefill: tuple[PrefillCore, Address], introduction: Introduction
) -> None:
    channel = visit(prefill[1], introduction)
    channel.send(ask())
    pieces, ended = received(channel)
    assert ended == Ended(0)
    assert [piece.first for piece in pieces] == list(range(0, 20, 2))  # a step has 64 tokens
    assert {len(piece.checksums) for piece in pieces} == {2}
    # Once they are cached they come at once; those that are there already do not.
    channel.send(ask(1, first=15))
    pieces, ended = received(channel)
    assert [(piece.first, len(piece.checksums)) for piece in pieces] == [(15, 5)]
    channel.close()


def test_it_answers_its_own_requests_meanwhile(
    asked: EngineConfig, introduction: Introduction
) -> None:
    alone = plain(asked)
    expected = complete(alone, [request("r", PROMPT[:90])])
    alone.close()
    core, station = apart(asked, PrefillRole(listen=Address("127.0.0.1", 0)))
    assert station.visitors is not None
    channel = visit(station.visitors.address, introduction)
    channel.send(ask())
    until(lambda: core.has_work)
    assert complete(core, [request("r", PROMPT[:90])]) == expected
    with pytest.raises(RequestError, match="engine's own"):
        core.add_request(request("handover:1", [1, 2]))
    while handovers(core).open:
        core.step()
    assert received(channel)[1] == Ended(0)
    channel.close()
    core.close()


def test_those_that_leave_are_forgotten(
    prefill: tuple[PrefillCore, Address], introduction: Introduction
) -> None:
    core, address = prefill
    for i in range(3):
        channel = visit(address, introduction)
        channel.send(ask(0, array("i", prompt(20 + i, 30 * BLOCK_SIZE))))
        channel.send(Cancel(17))
        channel.close()
    channel = visit(address, introduction)
    channel.send(ask(0, array("i", prompt(30, 30 * BLOCK_SIZE))))
    channel.send(Cancel(0))
    channel.send(ask(1))
    assert received(channel)[1] == Ended(1)
    until(lambda: handovers(core).peers == 1)
    channel.close()
    until(lambda: handovers(core).peers == 0)
    until(lambda: core.stats().running == core.stats().waiting == 0)


BAD = [
    ask(0, first=20),
    ask(0, first=-1),
    ask(0, TOKENS[:-1]),
    ask(0, array("i")),
    Ended(0),
    Beat(0, 0.0),
    Verdict(""),
]


@pytest.mark.parametrize("message", BAD)
def test_what_no_decode_engine_says_ends_the_connection(
    message: Any, prefill: tuple[PrefillCore, Address], introduction: Introduction
) -> None:
    channel = visit(prefill[1], introduction)
    channel.send(message)
    left(channel)
    channel.close()


def test_numbers_ascend(prefill: tuple[PrefillCore, Address], introduction: Introduction) -> None:
    channel = visit(prefill[1], introduction)
    channel.send(ask(4))
    channel.send(ask(4))
    left(channel)
    channel.close()


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
    channel = visit(prefill[1], introduction)
    channel.send(ask(0, tokens))
    pieces, ended = received(channel)
    assert not pieces
    assert why in ended.error
    channel.close()


def test_another_layout_of_blocks_is_refused_by_name(
    prefill: tuple[PrefillCore, Address], introduction: Introduction
) -> None:
    with pytest.raises(ConfigError, match=r"has blocks of \(12288,\) bytes, not \(7,"):
        visit(prefill[1], replace(introduction, group_bytes=(7,)))
    with pytest.raises(ConfigError, match="the prefill engine takes a decode engine at the other"):
        visit(prefill[1], replace(introduction, side="prefill"))


def test_blocks_are_those_of_the_cache(
    prefill: tuple[PrefillCore, Address], introduction: Introduction, asked: EngineConfig
) -> None:
    alone = plain(asked)
    complete(alone, [request("r", PROMPT)])
    assert alone.blocks is not None
    wanted = alone.blocks.read(chain_keys("", TOKENS, 19, BLOCK_SIZE), 0)
    alone.close()
    channel = visit(prefill[1], introduction)
    channel.send(ask())
    found = []
    while True:
        message, content, _ = channel.receive()
        if isinstance(message, Ended):
            break
        if isinstance(message, Blocks):
            found.append(content)
    whole = np.concatenate(found)
    np.testing.assert_array_equal(whole[: len(wanted.data)], wanted.data)
    channel.close()


def test_an_address_that_is_taken_is_refused(
    asked: EngineConfig, prefill: tuple[PrefillCore, Address]
) -> None:
    with pytest.raises(ConfigError, match=r"--handover-listen 127.0.0.1:.*in use"):
        apart(asked, PrefillRole(listen=prefill[1]))
