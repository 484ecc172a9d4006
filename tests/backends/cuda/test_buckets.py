"""Which steps are captured, and to which of them a step is padded."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.tiny_plans import Chunk, broken, step_of, tokens_of

from penstock.backends.cuda.buckets import (
    MOST_COPIES,
    Bucket,
    Buckets,
    bucket_sizes,
    graphed_rows,
)
from penstock.backends.cuda.kernels.tiles import Kind, choose
from penstock.backends.cuda.step import idle_step, idle_tree
from penstock.interface.executor import Limits

TOKENS = tokens_of(5, 70)
LIMITS = Limits(num_blocks=1, max_tokens=2048, max_logit_rows=512, max_sequences=256, threads=1)


def decode(count: int, copies: Any = ()) -> Any:
    return step_of(
        [Chunk(TOKENS, 40 + i, 41 + i, [3 * i, 3 * i + 1]) for i in range(count)], copies
    )


def holding(tokens: int, rows: int, buckets: Buckets) -> tuple[int, int] | None:
    return buckets.holding(idle_step_of(tokens, rows))


def idle_step_of(tokens: int, rows: int) -> Any:
    """One sequence, and no block copied."""
    step = idle_step(tokens, rows)
    return broken(step, block_copies=step.block_copies[:0])


def test_sizes_ascend_to_the_most() -> None:
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


def test_a_decode_step_takes_the_smallest_that_holds_it() -> None:
    buckets = Buckets(bucket_sizes(6), ())
    assert [buckets.holding(decode(n)) for n in range(1, 7)] == [(n, n) for n in (1, 2, 4, 4, 6, 6)]
    assert buckets.holding(decode(7)) is None


def test_buckets_are_of_rows_whosever_they_are() -> None:
    buckets = Buckets.of(LIMITS)
    verified = Chunk(TOKENS, 5, 9, [2], rows=range(5, 9))
    assert buckets.holding(step_of([verified])) == (4, 4)
    assert buckets.holding(step_of([verified, Chunk(TOKENS, 0, 2, [1])])) == (8, 8)
    two = [Chunk(TOKENS, 0, 1, [1]), Chunk(TOKENS, 5, 6, [2], rows=[])]
    assert buckets.holding(step_of(two)) == (2, 2)
    # Every row gets logits, which cost next to nothing for 16 of them, and else half the rows'.
    assert buckets.holding(step_of([Chunk(TOKENS, 0, 16, [1])])) == (16, 16)
    assert buckets.holding(step_of([Chunk(TOKENS, 0, 17, [1])])) == (32, 16)
    assert buckets.holding(step_of([Chunk(TOKENS, 0, 18, [1], rows=range(9))])) == (24, 24)


@pytest.mark.parametrize(
    ("tokens", "rows", "bucket"),
    [
        (5, 0, (16, 0)),
        (40, 1, (64, 16)),
        (41, 20, (64, 64)),
        (64, 0, (64, 0)),
        (65, 30, (128, 64)),
        (256, 33, (256, 64)),
        (257, 33, (384, 64)),
        (288, 33, (384, 64)),
        (500, 200, (512, 256)),
        (512, 257, None),  # prompts whose log-probabilities are wanted
        (513, 1, None),
    ],
)
def test_a_mixed_step_takes_the_fewest_tokens_and_then_rows(
    tokens: int, rows: int, bucket: tuple[int, int] | None
) -> None:
    assert holding(tokens, rows, Buckets.of(LIMITS)) == bucket


def test_graphs_are_few() -> None:
    assert len(list(Buckets.of(LIMITS))) == 32
    assert len(list(Buckets.of(replace(LIMITS, max_sequences=4)))) == 17
    drafts = replace(LIMITS, max_sequences=64, rows_per_sequence=9)
    assert len(list(Buckets.of(drafts))) == 34
    assert list(Buckets.of(replace(LIMITS, max_tokens=12, max_sequences=2))) == [
        *((12, 2), (12, 0)),
        *((2, 2), (1, 1)),
    ]


@given(
    tokens=st.integers(1, 700),
    sequences=st.integers(1, 600),
    drafted=st.integers(1, 9),
    most_logits=st.integers(1, 700),
    data=st.data(),
)
def test_every_small_step_is_held_by_a_bucket_that_is_captured(
    tokens: int, sequences: int, drafted: int, most_logits: int, data: st.DataObject
) -> None:
    limits = replace(
        LIMITS,
        max_tokens=tokens,
        max_sequences=min(sequences, tokens),
        rows_per_sequence=drafted,
        max_logit_rows=max(most_logits, min(sequences, tokens)),
    )
    buckets = Buckets.of(limits)
    captured = list(buckets)
    assert captured == sorted(set(captured), reverse=True)
    assert all(rows <= limits.max_logit_rows and size <= tokens for size, rows in captured)
    step_tokens = data.draw(st.integers(1, min(tokens, 512)))
    step_rows = data.draw(st.integers(0, min(step_tokens, graphed_rows(limits))))
    bucket = buckets.holding(idle_step_of(step_tokens, step_rows))
    assert bucket in captured
    assert bucket.tokens >= step_tokens
    assert bucket.rows >= step_rows
    able = [each for each in captured if each.tokens >= step_tokens and each.rows >= step_rows]
    assert bucket.tokens <= max(16, 2 * step_tokens) or bucket == min(able)


def test_a_mixed_step_computes_the_tiles_that_it_would_take_anyway() -> None:
    """This holds on a server's GPU; elsewhere products with several sums take 64 rows at a time."""
    sizes = sorted({bucket.tokens for bucket in Buckets.of(LIMITS).mixed})
    kinds = (Kind(16, 2), Kind(16, 2, gated=True), Kind(4, 2, depth=128))

    def computed(kind: Kind, rows: int) -> int:
        tile = choose(kind, rows, 14336, 4096, (9, 0))
        return -(-rows // tile.rows) * tile.rows

    for kind in kinds:
        for rows in range(1, 513):
            padded = next(size for size in sizes if size >= rows)
            assert computed(kind, padded) == computed(kind, rows)


def test_a_step_that_does_more_than_a_graph_has_no_bucket() -> None:
    buckets = Buckets.of(LIMITS)
    chunk = Chunk(TOKENS, 0, 3, [1])
    assert buckets.holding(step_of([chunk])) == (4, 4)
    assert buckets.holding(step_of([replace(chunk, rows=[])])) == (16, 0)
    copies = [(7, 8)] * (MOST_COPIES + 1)
    assert buckets.holding(step_of([chunk], copies[1:])) == (4, 4)
    assert buckets.holding(step_of([chunk], copies)) is None
    assert buckets.holding(step_of([replace(chunk, hidden=[0])])) is None
    assert buckets.holding(broken(step_of([chunk]), tree_parents=[-1, 0, 0])) is None
    assert buckets.holding(broken(step_of([chunk]), slot_moves=[[40, 41]])) is None
    assert buckets.holding(idle_tree()) is None


def test_the_largest_has_room_for_the_logits_of_all_drafts() -> None:
    limits = Limits(num_blocks=1, max_tokens=2048, max_logit_rows=2048, max_sequences=64, threads=1)
    assert graphed_rows(limits) == 64
    assert graphed_rows(replace(limits, rows_per_sequence=5)) == 320
    assert graphed_rows(replace(limits, rows_per_sequence=9)) == 512
    assert graphed_rows(replace(limits, max_sequences=600, rows_per_sequence=9)) == 600
    assert graphed_rows(replace(limits, rows_per_sequence=5, max_logit_rows=128)) == 128
    assert graphed_rows(replace(limits, max_tokens=8)) == 8
    assert Buckets.of(replace(limits, rows_per_sequence=5)).holding(
        idle_step_of(320, 320)
    ) == Bucket(320, 320)
