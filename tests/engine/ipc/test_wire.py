"""Messages between the server's process and the engine's, as frames of a stream."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine_processes import request

from penstock.engine.ipc.wire import (
    HEADER,
    FrameReader,
    ToEngine,
    Updates,
    WireError,
    encode_frame,
    encode_updates,
)
from penstock.interface.messages import Abort, SequenceUpdate


@given(st.lists(st.text(max_size=20), max_size=8), st.lists(st.integers(1, 40), min_size=1))
@settings(max_examples=50, deadline=None)
def test_frames_survive_any_cut_of_the_stream(names: list[str], cuts: list[int]) -> None:
    messages = [Abort([name, name[::-1]]) for name in names]
    stream = b"".join(encode_frame(message) for message in messages)
    reader, received, at = FrameReader(ToEngine), [], 0
    while at < len(stream):
        cut = cuts[len(received) % len(cuts)]
        received += reader.feed(stream[at : at + cut])
        at += cut
    assert received == messages
    assert not reader.in_frame


def test_a_frame_over_the_limit_is_refused_on_both_sides() -> None:
    big = request("r", list(range(1000)))
    with pytest.raises(WireError, match=r"EngineRequest message takes .* more than the 100"):
        encode_frame(big, limit=100)
    with pytest.raises(WireError, match="announces"):
        FrameReader(ToEngine, limit=100).feed(encode_frame(big))


@pytest.mark.parametrize(
    "body",
    [b"\xc1", b"", msgspec.msgpack.encode({"type": "nonsense"}), b"\x92\x01", b"\xa2\xff\xfe"],
)
def test_a_frame_that_holds_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(WireError, match="no known message"):
        FrameReader(ToEngine).feed(HEADER.pack(len(body)) + body)


def test_the_updates_of_a_step_split_only_when_they_must() -> None:
    updates = [
        SequenceUpdate(request_id=f"r{i}", index=0, token_ids=list(range(count)))
        for i, count in enumerate([3, 500, 3, 3])
    ]
    frames, failed = encode_updates(updates)
    assert len(frames) == 1
    assert failed == []
    frames, failed = encode_updates(updates, limit=300)
    assert [update.request_id for update, _ in failed] == ["r1"]
    reader = FrameReader(Updates)
    sent = [u for frame in frames for m in reader.feed(frame) for u in m.updates]  # type: ignore[attr-defined]
    assert [update.request_id for update in sent] == ["r0", "r2", "r3"]


def test_every_message_keeps_its_value() -> None:
    original = request(
        "r", [1, 2], temperature=0.5, seed=2**64 - 1, logit_bias={5: -1.5}, stop=("a", "b"), n=3
    )
    assert FrameReader(ToEngine).feed(encode_frame(original)) == [original]
