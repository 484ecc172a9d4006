"""Frames: whatever is damaged, cut or repeated is noticed, and nothing else is raised."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.handover.link import Link, LinkEndedError
from penstock.engine.handover.wire import (
    Ask,
    Beat,
    Blocks,
    Cancel,
    Ended,
    FromDecode,
    FromPrefill,
    Message,
)
from penstock.processes.frames import WireError

SIZES = (48, 80)
CONTENT = np.arange(96, dtype=np.uint8)
MESSAGES: list[tuple[Message, Any]] = [
    (Beat(12, 3.5), None),
    (Blocks(number=1, group=0, first=3, checksums=(5, 6)), CONTENT),
    (Blocks(number=1, group=1, first=0, checksums=(7,)), CONTENT[:80]),
    (Ended(1, "why"), None),
]
KEYS = [(b"", b""), (b"a" * 32, b"b" * 32)]


def pair(keys: tuple[bytes, bytes] = KEYS[0]) -> tuple[Link, Link, socket.socket]:
    ours, theirs = socket.socketpair()
    sender, receiver = Link(ours, FromDecode), Link(theirs, FromPrefill, 1 << 12)
    sender.secure(*keys)
    receiver.secure(*keys[::-1])
    receiver.group_bytes = SIZES
    receiver.set_timeout(10)
    return sender, receiver, ours


def recorded(keys: tuple[bytes, bytes]) -> list[bytes]:
    """The frames of all messages."""
    frames = []
    sender, receiver, _ = pair(keys)
    for message, content in MESSAGES:
        sender.send(message, content)
        receiver._socket.settimeout(1)
        frames.append(receiver._socket.recv(1 << 16, socket.MSG_DONTWAIT))
    sender.close()
    receiver.close()
    return frames


def read(data: bytes, keys: tuple[bytes, bytes]) -> list[tuple[Any, Any]]:
    """What is received of these bytes before they end, or a frame that is none."""
    sender, receiver, raw = pair(keys)
    raw.sendall(data)
    sender.close()
    found = []
    try:
        while True:
            found.append(receiver.receive())
    except LinkEndedError:
        return found
    finally:
        receiver.close()


@pytest.mark.parametrize("keys", KEYS, ids=["plain", "keyed"])
def test_messages_arrive(keys: tuple[bytes, bytes]) -> None:
    found = read(b"".join(recorded(keys)), keys)
    assert [message for message, _ in found] == [message for message, _ in MESSAGES]
    for (_, content), (_, wanted) in zip(found, MESSAGES, strict=True):
        assert (content is None) == (wanted is None)
        if wanted is not None:
            np.testing.assert_array_equal(content, wanted)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_is_noticed(data: st.DataObject) -> None:
    keys = data.draw(st.sampled_from(KEYS))
    whole = b"".join(recorded(keys))
    at = data.draw(st.integers(0, len(whole) - 1))
    bit = 1 << data.draw(st.integers(0, 7))
    damaged = whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :]
    try:
        found = read(damaged, keys)
    except WireError:
        return
    # Without a key, the bytes of blocks are those that their checksums vouch for.
    assert not keys[0]
    assert [message for message, _ in found] == [message for message, _ in MESSAGES]
    contents = [(c, w) for (_, c), (_, w) in zip(found, MESSAGES, strict=True) if w is not None]
    assert sum(int((c != w).sum()) for c, w in contents) == 1


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_frames_that_are_left_out_repeated_or_cut_are_noticed(data: st.DataObject) -> None:
    keys = data.draw(st.sampled_from(KEYS))
    frames = recorded(keys)
    order = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))
    if order != list(range(len(order))):
        with pytest.raises(WireError, match="tag"):
            read(b"".join(frames[i] for i in order), keys)
    whole = b"".join(frames)
    borders = {sum(map(len, frames[:i])) for i in range(5)}
    end = data.draw(st.integers(1, len(whole)))
    if end not in borders:
        with pytest.raises(WireError, match="ended inside"):
            read(whole[:end], keys)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_garbage_is_no_frame(data: bytes) -> None:
    try:
        assert read(data, KEYS[0]) == []
        assert data == b""
    except WireError:
        pass


def test_messages_of_the_other_side_are_no_messages() -> None:
    sender, receiver, _ = pair()
    sender.send(Cancel(3))
    with pytest.raises(WireError, match="no known message"):
        receiver.receive()
    sender.close()
    sender, receiver, _ = pair()
    sender.send(Ask(number=1, token_ids=bytes(1 << 13), first=0))
    with pytest.raises(WireError, match="more than 4096"):
        receiver.receive()
    sender.close()
    receiver.close()
