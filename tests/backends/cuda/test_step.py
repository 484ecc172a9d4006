"""A step's arrays on the device, and decode steps padded to the buckets of CUDA graphs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from tiny_plans import Chunk, broken, step_of, tokens_of  # noqa: E402

from penstock.backends.cuda.graphs import bucket_of, bucket_sizes, graphed_rows  # noqa: E402
from penstock.backends.cuda.step import (  # noqa: E402
    Layout,
    StepBuffer,
    arrays_of,
    idle_decode,
    idle_step,
    idle_tree,
    pad_decode,
)
from penstock.interface.executor import Limits  # noqa: E402

TOKENS = tokens_of(5, 70)
FIELDS = ("token_ids", "positions", "slots", "query_starts", "context_lens", "block_starts")


def decode(count: int, copies: Any = ()) -> Any:
    return step_of(
        [Chunk(TOKENS, 40 + i, 41 + i, [3 * i, 3 * i + 1]) for i in range(count)], copies
    )


def test_buckets_ascend_to_the_most() -> None:
    assert bucket_sizes(1) == (1,)
    assert bucket_sizes(3) == (1, 2, 3)
    assert bucket_sizes(8) == (1, 2, 4, 8)
    assert bucket_sizes(256) == (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
    for most in range(1, 400):
        sizes = bucket_sizes(most)
        assert sizes[-1] == most
        assert list(sizes) == sorted(set(sizes))
        gaps = itertools.pairwise(sizes)
        assert all(b <= 2 * a and (a < 16 or 2 * b <= 3 * a) for a, b in gaps)


def test_a_decode_step_takes_the_smallest_bucket_that_holds_it() -> None:
    sizes = bucket_sizes(6)
    assert [bucket_of(decode(n), sizes) for n in range(1, 7)] == [1, 2, 4, 4, 6, 6]
    assert bucket_of(decode(7), sizes) is None


def test_buckets_are_of_rows_whosever_they_are() -> None:
    sizes = bucket_sizes(64)
    verified = Chunk(TOKENS, 5, 9, [2], rows=range(5, 9))
    assert bucket_of(step_of([verified]), sizes) == 4
    assert bucket_of(step_of([verified, Chunk(TOKENS, 0, 2, [1])]), sizes) == 8
    two = [Chunk(TOKENS, 0, 1, [1]), Chunk(TOKENS, 5, 6, [2], rows=[])]
    assert bucket_of(step_of(two), sizes) == 2
    # Every row gets logits, which cost next to nothing for 16 of them, and else half the rows'.
    assert bucket_of(step_of([Chunk(TOKENS, 0, 16, [1])]), sizes) == 16
    assert bucket_of(step_of([Chunk(TOKENS, 0, 17, [1])]), sizes) is None
    assert bucket_of(step_of([Chunk(TOKENS, 0, 18, [1], rows=range(9))]), sizes) == 24


def test_a_step_that_does_more_than_its_rows_has_no_bucket() -> None:
    sizes = bucket_sizes(8)
    chunk = Chunk(TOKENS, 0, 3, [1])
    assert bucket_of(step_of([chunk]), sizes) == 4
    assert bucket_of(step_of([chunk], [(7, 8)]), sizes) is None  # copies blocks
    assert bucket_of(step_of([replace(chunk, rows=[])]), sizes) is None  # no logits
    assert bucket_of(step_of([replace(chunk, hidden=[0])]), sizes) is None
    assert bucket_of(broken(step_of([chunk]), tree_parents=[-1, 0, 0]), sizes) is None
    assert bucket_of(broken(step_of([chunk]), slot_moves=[[40, 41]]), sizes) is None


def test_the_largest_graph_has_room_for_the_drafts_of_all() -> None:
    limits = Limits(num_blocks=1, max_tokens=2048, max_logit_rows=2048, max_sequences=64, threads=1)
    assert graphed_rows(limits) == 64
    assert graphed_rows(replace(limits, rows_per_sequence=5)) == 320
    assert graphed_rows(replace(limits, rows_per_sequence=9)) == 512
    assert graphed_rows(replace(limits, max_sequences=600, rows_per_sequence=9)) == 600
    assert graphed_rows(replace(limits, rows_per_sequence=5, max_logit_rows=128)) == 128
    assert graphed_rows(replace(limits, max_tokens=8)) == 8


def test_padding_computes_nothing() -> None:
    step = decode(3)
    padded = pad_decode(step, 8)
    for name in FIELDS[:3]:
        np.testing.assert_array_equal(getattr(padded, name)[:3], getattr(step, name))
    assert padded.slots[3:].tolist() == [-1] * 5
    assert padded.context_lens.tolist() == [41, 42, 43, 0, 0, 0, 0, 0]
    assert padded.query_starts.tolist() == list(range(9))
    assert padded.block_starts.tolist() == [0, 2, 4, 6, 6, 6, 6, 6, 6]
    assert padded.logit_rows.tolist() == list(range(8))
    np.testing.assert_array_equal(padded.block_ids, step.block_ids)
    assert all(getattr(padded, name).dtype == np.int32 for name in FIELDS)
    idle = idle_decode(4)
    assert (idle.num_tokens, idle.num_sequences, len(idle.logit_rows)) == (4, 4, 4)
    assert not idle.context_lens.any()
    assert (idle_step(7, 7).slots == -1).all()
    assert bucket_of(idle_tree(), (8,)) is None


def test_padding_keeps_drafts_and_the_order_of_logits() -> None:
    chunks = [Chunk(TOKENS, 5, 8, [2], rows=[6, 7]), Chunk(TOKENS, 40, 41, [3, 4])]
    padded = pad_decode(step_of(chunks), 6)
    assert padded.query_starts.tolist() == [0, 3, 4, 5, 6]
    assert padded.context_lens.tolist() == [8, 41, 0, 0]
    assert padded.block_starts.tolist() == [0, 1, 3, 3, 3]
    assert padded.logit_rows.tolist() == [1, 2, 3, 3, 4, 5]
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
        for name in (*FIELDS, "block_ids", "block_copies"):
            tensor = getattr(there, name)
            np.testing.assert_array_equal(tensor.cpu().numpy(), getattr(step, name))
            assert tensor.numel() == 0 or tensor.data_ptr() % 64 == 0
        assert there.work[0].tolist() == list(range(9))
        assert (there.num_tokens, there.num_sequences) == (step.num_tokens, step.num_sequences)
        assert there.num_logit_rows == len(step.logit_rows)
        selected = [*step.logit_rows, *step.hidden_rows]
        assert there.selected_rows.tolist() == selected


def test_a_bucket_keeps_its_addresses(device: Any) -> None:
    """What a graph recorded is where every later step of its bucket is written."""
    buffer = StepBuffer(2000, device)
    lengths = [array.size for array in arrays_of(idle_decode(4))]
    lengths[-1] = 100
    layout = Layout.of(lengths)
    recorded = buffer.views(layout)
    for count in (4, 1, 3):
        step = decode(count)
        buffer.write(layout, arrays_of(pad_decode(step, 4)))
        assert recorded.token_ids[:count].tolist() == step.token_ids.tolist()
        assert recorded.slots[count:].tolist() == [-1] * (4 - count)
        assert recorded.block_ids[: len(step.block_ids)].tolist() == step.block_ids.tolist()
