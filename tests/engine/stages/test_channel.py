"""Frames between hosts: whole ones arrive, and everything else is an error."""

from __future__ import annotations

import socket
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.stages.channel import MAGIC, VERSION, Channel
from penstock.engine.stages.wire import FromStage, StageResult
from penstock.processes.frames import WireError

HEADER = 16 + 16


def ends(key: bytes = b"", **options: Any) -> tuple[Channel[FromStage], Channel[FromStage]]:
    """The end of an engine and of a stage."""
    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    theirs.settimeout(5)
    return (
        Channel(ours, "engine", FromStage, key=key, **options),
        Channel(theirs, "stage", FromStage, key=key),
    )


def raw(data: bytes, key: bytes = b"", **options: Any) -> Channel[FromStage]:
    """The end of an engine whose peer has sent ``data`` and ended."""
    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    threading.Thread(target=lambda: (theirs.sendall(data), theirs.close())).start()
    return Channel(ours, "engine", FromStage, key=key, **options)


def frame_of(message: msgspec.Struct, key: bytes = b"") -> bytes:
    """The bytes of a stage's first frame."""
    ours, theirs = socket.socketpair()
    Channel(theirs, "stage", FromStage, key=key).send(message)
    theirs.close()
    data = b""
    while piece := ours.recv(1 << 20):
        data += piece
    return data


RESULT = StageResult(7, [b"abc" * 100, b""])


@pytest.mark.parametrize("key", [b"", b"k" * 32])
def test_messages_arrive_in_order_and_whole(key: bytes) -> None:
    engine, stage = ends(key)
    large = StageResult(8, [bytes(range(256)) * 20_000])
    sender = threading.Thread(target=lambda: [stage.send(m) for m in (RESULT, large, RESULT)])
    sender.start()
    assert [engine.receive() for _ in range(3)] == [RESULT, large, RESULT]
    sender.join()
    stage.finish()
    assert engine.receive() is None


def test_an_end_between_frames_is_one_and_within_a_frame_an_error() -> None:
    data = frame_of(RESULT)
    assert raw(b"").receive() is None
    channel = raw(data)
    assert channel.receive() == RESULT
    assert channel.receive() is None
    for cut in (1, HEADER - 1, HEADER, len(data) - 1):
        with pytest.raises(WireError, match="ended within a frame"):
            raw(data[:cut]).receive()


def test_what_is_no_frame_of_ours() -> None:
    with pytest.raises(WireError, match="no stage of a pipeline: it sends b'GET / HTTP"):
        raw(b"GET / HTTP/1.1\r\nHost: stage.example\r\n\r\n").receive()
    data = bytearray(frame_of(RESULT))
    assert data[:4] == MAGIC
    data[4] = VERSION + 1
    with pytest.raises(WireError, match="version 2 of the stages' protocol, and this is version 1"):
        raw(bytes(data)).receive()


def test_a_frame_that_is_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(WireError, match=r"announces .* bytes, more than 64"):
        raw(frame_of(RESULT), limit=64).receive()


def test_a_frame_of_another_key_or_twice_or_one_of_our_own() -> None:
    data = frame_of(RESULT, b"k" * 32)
    for key in (b"", b"l" * 32):
        with pytest.raises(WireError, match="damaged, out of order, or not the peer's"):
            raw(data, key).receive()
    channel = raw(data + data, b"k" * 32)
    assert channel.receive() == RESULT
    with pytest.raises(WireError, match="out of order"):
        channel.receive()
    ours, theirs = socket.socketpair()
    engine: Channel[FromStage] = Channel(ours, "engine", FromStage)
    engine.send(RESULT)
    theirs.sendall(theirs.recv(1 << 16))
    with pytest.raises(WireError, match="not the peer's"):
        engine.receive()


def test_a_known_frame_of_no_known_message() -> None:
    class Other(msgspec.Struct, tag="other"):
        x: int

    with pytest.raises(WireError, match="no known message"):
        raw(frame_of(Other(1))).receive()


def test_a_peer_that_says_nothing() -> None:
    ours, _theirs = socket.socketpair()
    ours.settimeout(0.05)
    channel: Channel[FromStage] = Channel(ours, "engine", FromStage)
    with pytest.raises(TimeoutError):
        channel.receive()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damage_is_noticed_wherever_it_is(data: st.DataObject) -> None:
    """Any byte of a frame may be damaged; one that announces more than comes is cut off."""
    frame = bytearray(frame_of(RESULT))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(WireError):
        raw(bytes(frame)).receive()


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=1, max_size=200))
def test_garbage_is_an_error(data: bytes) -> None:
    with pytest.raises(WireError):
        raw(data).receive()
