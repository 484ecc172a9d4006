"""Frames of a stream: any cut of it gives the same messages, and what is none is refused."""

from __future__ import annotations

import socket
import threading

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.processes.frames import HEADER, FrameReader, WireError, encode


class Note(msgspec.Struct, tag="note"):
    names: list[str]


class Number(msgspec.Struct, tag="number"):
    value: int


def reader(limit: int = 1 << 20) -> FrameReader[Note | Number]:
    return FrameReader(Note | Number, limit)


@given(st.lists(st.text(max_size=20), max_size=8), st.lists(st.integers(1, 40), min_size=1))
@settings(max_examples=50, deadline=None)
def test_frames_survive_any_cut_of_the_stream(names: list[str], cuts: list[int]) -> None:
    messages: list[Note | Number] = [Note([name, name[::-1]]) for name in names]
    messages.append(Number(len(names)))
    stream = b"".join(encode(message) for message in messages)
    frames, received, at = reader(), [], 0
    while at < len(stream):
        cut = cuts[len(received) % len(cuts)]
        received += frames.feed(stream[at : at + cut])
        at += cut
    assert received == messages
    assert not frames.in_frame


def test_a_frame_over_the_limit_is_refused_on_both_sides() -> None:
    big = Note(["x" * 1000])
    with pytest.raises(WireError, match=r"Note message takes 1\d+ bytes, more than the 100 that"):
        encode(big, limit=100)
    with pytest.raises(WireError, match="announces"):
        reader(limit=100).feed(encode(big))


@pytest.mark.parametrize(
    "body",
    [b"\xc1", b"", msgspec.msgpack.encode({"type": "nonsense"}), b"\x92\x01", b"\xa2\xff\xfe"],
)
def test_a_frame_that_holds_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="no known message"):
        reader().feed(HEADER.pack(len(body)) + body)


def test_a_blocking_socket_gives_messages_until_its_end() -> None:
    ours, theirs = socket.socketpair()
    frame = encode(Note(["a"])) + encode(Number(1))

    def write() -> None:
        with theirs:
            theirs.sendall(frame[:3])
            theirs.sendall(frame[3:] + frame[:5])

    thread = threading.Thread(target=write)
    with ours:
        ours.settimeout(60)
        thread.start()
        frames, received = reader(), []
        while messages := frames.receive(ours):
            received += messages
        thread.join()
    assert received == [Note(["a"]), Number(1)]
    assert frames.in_frame  # the stream was cut off
