"""A step's arrays on the device, and steps padded to the buckets of CUDA graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.kv_tables import arrays_of as named  # noqa: E402
from support.tiny_plans import Chunk, step_of, tokens_of  # noqa: E402

from penstock.backends.cuda.step import (  # noqa: E402
    Layout,
    StepBuffer,
    arrays_of,
    idle_step,
    pad_step,
    padding,
)

TOKENS = tokens_of(5, 70)
FIELDS = ("token_ids", "positions", "slots", "query_starts", "context_lens", "block_starts")
SENT = ("token_ids", "positions", "query_starts", "context_lens", "block_copies")


def decode(count: int, copies: Any = ()) -> Any:
    return step_of(
        [Chunk(TOKENS, 40 + i, 41 + i, [3 * i, 3 * i + 1]) for i in range(count)], copies
    )


def test_padding_computes_nothing() -> None:
    step = decode(3)
    padded = pad_step(step, 8, 8)
    for name in FIELDS[:3]:
        np.testing.assert_array_equal(named(padded)[name][:3], named(step)[name])
    assert named(padded)["slots"][3:].tolist() == [-1] * 5
    assert padded.context_lens.tolist() == [41, 42, 43, 0, 0, 0, 0, 0]
    assert padded.query_starts.tolist() == list(range(9))
    assert named(padded)["block_starts"].tolist() == [0, 2, 4, 6, 6, 6, 6, 6, 6]
    assert padded.logit_rows.tolist() == [0, 1, 2, 0, 0, 0, 0, 0]
    np.testing.assert_array_equal(padded.groups[0].block_ids, step.groups[0].block_ids)
    assert all(named(padded)[name].dtype == np.int32 for name in FIELDS)
    idle = padding(4, 4)
    assert (idle.num_tokens, idle.num_sequences, len(idle.logit_rows)) == (4, 4, 4)
    assert not idle.context_lens.any()
    assert (idle_step(7, 7).groups[0].slots == -1).all()


def test_padding_keeps_drafts_and_the_order_of_logits() -> None:
    chunks = [Chunk(TOKENS, 5, 8, [2], rows=[6, 7]), Chunk(TOKENS, 40, 41, [3, 4])]
    padded = pad_step(step_of(chunks), 6, 6)
    assert padded.query_starts.tolist() == [0, 3, 4, 5, 6, 6, 6]
    assert padded.context_lens.tolist() == [8, 41, 0, 0, 0, 0]
    assert named(padded)["block_starts"].tolist() == [0, 1, 3, 3, 3, 3, 3]
    assert padded.logit_rows.tolist() == [1, 2, 3, 0, 0, 0]
    assert padded.positions.tolist() == [5, 6, 7, 40, 0, 0]


def test_arrays_arrive_as_they_are(device: Any) -> None:
    buffer = StepBuffer(2000, device)
    chunk = Chunk(TOKENS, 0, 70, [4, 2, 0], rows=[1, 69], hidden=[0, 2])
    steps = [decode(3, [(9, 10)]), step_of([chunk])]
    for step in (*steps, *reversed(steps), steps[0]):
        work = np.arange(9, dtype=np.int32).reshape(3, 3)
        arrays = arrays_of(step, [work])
        layout = Layout.of([array.size for array in arrays])
        buffer.write(layout, arrays)
        there = buffer.views(layout, len(step.hidden_rows))
        pairs = [(getattr(there, name), getattr(step, name)) for name in SENT]
        for group in ("slots", "block_ids"):
            pairs.append((getattr(there.groups[0], group), getattr(step.groups[0], group)))
        for tensor, array in pairs:
            np.testing.assert_array_equal(tensor.cpu().numpy(), array)
            assert tensor.numel() == 0 or tensor.data_ptr() % 64 == 0
        assert there.work[0].tolist() == list(range(9))
        assert (there.num_tokens, there.num_sequences) == (step.num_tokens, step.num_sequences)
        assert there.num_logit_rows == len(step.logit_rows)
        selected = [*step.logit_rows, *step.hidden_rows]
        assert there.selected_rows.tolist() == selected


def test_a_bucket_keeps_its_addresses(device: Any) -> None:
    """What a graph recorded is where every later step of its bucket is written."""
    buffer = StepBuffer(2000, device)
    lengths = [array.size for array in arrays_of(padding(4, 4))]
    lengths[-1] = 100
    layout = Layout.of(lengths)
    recorded = buffer.views(layout)
    for count in (4, 1, 3):
        step = decode(count)
        buffer.write(layout, arrays_of(pad_step(step, 4, 4)))
        ids = step.groups[0].block_ids
        assert recorded.token_ids[:count].tolist() == step.token_ids.tolist()
        assert recorded.groups[0].slots[count:].tolist() == [-1] * (4 - count)
        assert recorded.groups[0].block_ids[: len(ids)].tolist() == ids.tolist()
