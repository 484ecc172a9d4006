"""A step's rows by expert, and their tiles, beside a naive list of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.cuda_experts import draw_ids, sort

from penstock.backends.cuda.kernels.tiles import most_tiles, row_step, row_steps


def check(ids: Any, experts: int, heights: Any, device: Any, slots: Any = None) -> None:
    order, tiles = (each.cpu().numpy() for each in sort(ids, experts, heights, device, slots))
    each = ids.reshape(-1).copy()
    if slots is not None:
        each[np.repeat(slots < 0, ids.shape[1])] = experts
    expected = np.argsort(each, kind="stable")[: np.count_nonzero(each < experts)]
    np.testing.assert_array_equal(order[: len(expected)], expected)
    assert (order[len(expected) :] == -9).all()
    starts = np.searchsorted(each[expected], np.arange(experts + 1))
    for index, height in enumerate(heights):
        wanted = [
            [expert, first, min(height, end - first)]
            for expert, (start, end) in enumerate(pairwise(starts))
            for first in range(start, end, height)
        ]
        most = most_tiles(each.size, experts, height)
        assert len(wanted) <= most
        np.testing.assert_array_equal(
            tiles[index, : len(wanted), :3].reshape(-1, 3), wanted or np.empty((0, 3))
        )
        assert (tiles[index, len(wanted) : most, 2] == 0).all()
        assert (tiles[index, most:] == -9).all()


@settings(deadline=None, max_examples=12)
@given(
    tokens=st.integers(1, 90),
    experts=st.sampled_from([1, 3, 8, 33]),
    times=st.integers(1, 3),
    padded=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rows_are_sorted_and_tiles_hold_each_once(
    tokens: int, experts: int, times: int, padded: bool, seed: int, device: Any
) -> None:
    generator = np.random.default_rng(seed)
    ids = draw_ids(generator, tokens, experts, min(times, experts))
    slots = generator.integers(-2, 4, tokens).astype(np.int32) if padded else None
    check(ids, experts, (16, 64), device, slots)


def test_more_rows_than_a_pass_takes(device: Any) -> None:
    ids = draw_ids(np.random.default_rng(0), 400, 5, 3)
    check(ids, 5, (128,), device)
    check(np.zeros((600, 1), np.int32), 64, (16,), device)  # all of them one expert's


@given(st.integers(0, 3000), st.integers(1, 300), st.sampled_from([16, 32, 64, 128, 256]))
def test_most_tiles_is_what_the_worst_shares_make(rows: int, experts: int, height: int) -> None:
    """One row for each expert, and what is left in whole tiles."""
    parts = min(rows, experts)
    worst = parts + (rows - parts) // height
    assert most_tiles(rows, experts, height) == worst


@given(st.integers(1, 3000))
def test_rows_count_as_the_next_step(rows: int) -> None:
    assert row_step(rows) == next(step for step in row_steps(4096) if step >= rows)
