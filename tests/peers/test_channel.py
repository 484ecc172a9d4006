"""Frames between hosts: whole ones arrive, and everything else is an error."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.peers.channel import (
    HEADER,
    MAGIC,
    SEAL_BYTES,
    VERSION,
    Channel,
    EndedError,
    Inbound,
    Keys,
    Payload,
)
from penstock.processes.frames import WireError


class Note(msgspec.Struct, tag="note", frozen=True):
    text: str


class Other(msgspec.Struct, tag="other", frozen=True):
    x: int


INBOUND = Inbound(Note, 1 << 10, 1 << 25)
KEYED = Keys(b"a" * 32, b"b" * 32)
SENT: list[tuple[Note, list[Payload]]] = [
    (Note("first"), []),
    (Note("second"), [np.arange(96, dtype=np.uint8), np.empty(0, np.uint8)]),
    (Note("x" * 200), [np.arange(7, dtype=np.uint8), np.arange(5, dtype=np.uint8)]),
]
both_ways = pytest.mark.parametrize("keys", [None, KEYED], ids=["plain", "keyed"])


def sockets() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    theirs.settimeout(10)
    return ours, theirs


def ends(keys: Keys | None = None, inbound: Inbound = INBOUND) -> tuple[Channel[Any], Channel[Any]]:
    ours, theirs = sockets()
    return Channel(ours, inbound, keys), Channel(theirs, inbound, keys and Keys(*keys[::-1]))


def recorded(keys: Keys | None) -> list[bytes]:
    """The frames of what is sent, in their order."""
    ours, theirs = sockets()
    sender: Channel[Any] = Channel(ours, INBOUND, keys)
    frames = []
    for message, payload in SENT:
        sender.send(message, *payload)
        frames.append(theirs.recv(1 << 16))
    sender.close()
    theirs.close()
    return frames


def read(data: bytes, keys: Keys | None = None, inbound: Inbound = INBOUND) -> list[Any]:
    """What is received of these bytes before they end."""
    ours, theirs = sockets()
    channel: Channel[Any] = Channel(theirs, inbound, keys and Keys(*keys[::-1]))
    ours.sendall(data)
    ours.close()
    found = []
    try:
        while True:
            found.append(channel.receive())
    except EndedError:
        return found
    finally:
        channel.close()


@both_ways
def test_messages_and_payloads_arrive_in_order_and_whole(keys: Keys | None) -> None:
    found = read(b"".join(recorded(keys)), keys)
    assert [frame.message for frame in found] == [message for message, _ in SENT]
    for frame, (_, payload) in zip(found, SENT, strict=True):
        assert frame.payload.tobytes() == b"".join(part.tobytes() for part in payload)


@both_ways
def test_payloads_larger_than_a_socket_takes_at_once(keys: Keys | None) -> None:
    ours, theirs = ends(keys)
    large = np.random.default_rng(1).integers(0, 256, 20 << 20, np.uint8)
    sender = threading.Thread(target=lambda: ours.send(Note("large"), large[:7], large[7:]))
    sender.start()
    frame = theirs.receive()
    sender.join()
    np.testing.assert_array_equal(frame.payload, large)
    assert frame.payload_s > 0
    ours.close()
    theirs.close()


@both_ways
def test_threads_send_whole_frames(keys: Keys | None) -> None:
    ours, theirs = ends(keys)

    def send(number: int) -> None:
        for _ in range(50):
            ours.send(Note(str(number)), np.full(2000, number, np.uint8))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(150):
        message, payload, _ = theirs.receive()
        assert payload.tolist() == [int(message.text)] * 2000
    for thread in threads:
        thread.join()
    ours.close()
    theirs.close()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_an_end_within_a_frame_is_an_error(data: st.DataObject) -> None:
    keys = data.draw(st.sampled_from([None, KEYED]))
    frames = recorded(keys)
    borders = {sum(map(len, frames[:i])): i for i in range(len(frames) + 1)}
    end = data.draw(st.integers(0, max(borders)))
    if end in borders:
        assert len(read(b"".join(frames)[:end], keys)) == borders[end]
        return
    with pytest.raises(WireError, match="ended within a frame"):
        read(b"".join(frames)[:end], keys)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damage_is_noticed_wherever_it_is(data: st.DataObject) -> None:
    whole = bytearray(b"".join(recorded(KEYED)))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(WireError):
        read(bytes(whole), KEYED)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=5))
def test_frames_that_are_left_out_repeated_or_in_another_order(order: list[int]) -> None:
    frames = recorded(KEYED)
    sent = b"".join(frames[i] for i in order)
    if order == list(range(len(order))):
        assert len(read(sent, KEYED)) == len(order)
        return
    with pytest.raises(WireError, match="damaged, out of order, or not the peer's"):
        read(sent, KEYED)


@settings(max_examples=150, deadline=None)
@given(st.binary(min_size=1, max_size=200), st.sampled_from([None, KEYED]), st.booleans())
def test_garbage_is_an_error(data: bytes, keys: Keys | None, begins_well: bool) -> None:
    """Garbage behind a header that could be one, too."""
    if begins_well:
        data = HEADER.pack(MAGIC, VERSION, 0, len(data) // 2, len(data) // 3) + data
    with pytest.raises(WireError):
        read(data, keys)


def test_frames_of_another_key_or_without_one_or_sent_back() -> None:
    (plain, *_), (keyed, *_) = recorded(None), recorded(KEYED)
    for data, keys in (
        (keyed, Keys(b"c" * 32, b"d" * 32)),
        (plain + bytes(SEAL_BYTES), KEYED),
        (keyed, Keys(*KEYED[::-1])),  # what was sent comes back
    ):
        with pytest.raises(WireError, match="not the peer's"):
            read(data, keys)


def test_what_is_no_frame_of_ours() -> None:
    with pytest.raises(WireError, match="none of Penstock's: it sends b'GET / HTTP"):
        read(b"GET / HTTP/1.1\r\nHost: peer.example\r\n\r\n")
    other = HEADER.pack(MAGIC, VERSION + 1, 0, 0, 0)
    with pytest.raises(
        WireError,
        match=f"version {VERSION + 1} of this protocol, and this is version {VERSION}; run",
    ):
        read(other)
    ours, theirs = ends()
    ours.send(Other(1))
    with pytest.raises(WireError, match="no known message"):
        theirs.receive()


@both_ways
def test_what_is_too_large_is_refused_before_it_comes(keys: Keys | None) -> None:
    for sizes in ((INBOUND.message_bytes + 1, 0), (0, INBOUND.payload_bytes + 1), (0, 1 << 63)):
        with pytest.raises(WireError, match=f"announces {max(sizes)} bytes, more than"):
            read(HEADER.pack(MAGIC, VERSION, 0, *sizes), keys)
    ours, theirs = ends(keys, Inbound(Note, 1 << 10))
    ours.send(Note("no payload is taken"), np.zeros(1, np.uint8))
    with pytest.raises(WireError, match="announces 1 bytes, more than 0"):
        theirs.receive()


def test_a_peer_that_says_nothing_or_takes_nothing_in() -> None:
    ours, _theirs = ends()
    ours.set_timeout(0.05)
    with pytest.raises(TimeoutError):
        ours.receive()
    with pytest.raises(TimeoutError):
        ours.send(Note("large"), np.zeros(20 << 20, np.uint8))


def test_a_second_of_delay_changes_nothing() -> None:
    first, second, _ = recorded(KEYED)
    ours, theirs = sockets()
    channel: Channel[Any] = Channel(theirs, INBOUND, Keys(*KEYED[::-1]))
    channel.set_timeout(30)

    def late() -> None:
        ours.sendall(first + second[:30])
        time.sleep(1)
        ours.sendall(second[30:])

    thread = threading.Thread(target=late)
    thread.start()
    assert [channel.receive().message for _ in range(2)] == [SENT[0][0], SENT[1][0]]
    thread.join()


def test_a_deadline_is_one_however_many_bytes_come() -> None:
    ours, theirs = sockets()
    channel: Channel[Any] = Channel(theirs, INBOUND)
    stop = threading.Event()

    def drip() -> None:
        ours.sendall(HEADER.pack(MAGIC, VERSION, 0, 0, INBOUND.payload_bytes))
        while not stop.wait(0.01):
            ours.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    channel.set_deadline(0.2)
    with pytest.raises(TimeoutError):
        channel.receive()
    stop.set()
    thread.join()
