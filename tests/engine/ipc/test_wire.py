"""Messages between the server's process and the engine's, one in each frame."""

from __future__ import annotations

import pytest
from support.engine_processes import request

from penstock.engine.ipc.wire import ToEngine, Updates, encode_frame, encode_updates
from penstock.interface.messages import SequenceUpdate
from penstock.processes.frames import FrameReader, WireError


def test_a_message_that_fits_in_no_frame_is_refused_with_advice() -> None:
    with pytest.raises(WireError, match=r"EngineRequest message .* 100 .*; ask for fewer logprobs"):
        encode_frame(request("r", list(range(1000))), limit=100)


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
    reader: FrameReader[Updates] = FrameReader(Updates)
    sent = [u for frame in frames for m in reader.feed(frame) for u in m.updates]
    assert [update.request_id for update in sent] == ["r0", "r2", "r3"]


def test_every_message_keeps_its_value() -> None:
    original = request(
        "r", [1, 2], temperature=0.5, seed=2**64 - 1, logit_bias={5: -1.5}, stop=("a", "b"), n=3
    )
    reader: FrameReader[ToEngine] = FrameReader(ToEngine)
    assert reader.feed(encode_frame(original)) == [original]
