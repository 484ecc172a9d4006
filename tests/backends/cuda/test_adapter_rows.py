"""The lists of rows by adapter that the host makes, against a naive sort."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.adapted_plans import LIMITS, SLOTS, STEP, USED, adapted
from support.tiny_plans import Chunk, broken, step_of, tokens_of

from penstock.backends.cuda.adapter_rows import AdapterRows, tiles_of
from penstock.backends.cuda.bind import step_bounds
from penstock.backends.cuda.buckets import Bucket
from penstock.backends.cuda.kernels.adapters import tile_height
from penstock.backends.cuda.kernels.tiles import most_tiles

ROWS = AdapterRows(SLOTS.count, ("T", "S", "R"))
TOKENS = [*[1] * 20, *[-1] * 33, 2, *[1] * 7, *[0] * 20]
"""The slot of each token of STEP."""
LOGITS = [1, -1, 2, 1, 1, 0]


def rows_by_slot(tiles: Any, order: Any) -> dict[int, list[int]]:
    """What kernels find in lists."""
    found: dict[int, list[int]] = {}
    for slot, first, count in tiles.reshape(-1, 3).tolist():
        if count:
            found.setdefault(slot, []).extend(order[first : first + count].tolist())
    return found


def sorted_naively(slots: Any) -> dict[int, list[int]]:
    return {s: np.flatnonzero(slots == s).tolist() for s in np.unique(slots[slots >= 0]).tolist()}


@pytest.mark.parametrize("height", [1, 16, 64])
@pytest.mark.parametrize("rows", [0, 1, 5, 16, 200])
def test_every_row_is_in_one_tile_of_its_slot(rows: int, height: int) -> None:
    random = np.random.default_rng(rows)
    for slots in (random.integers(-1, 4, rows), np.full(rows, -1), np.zeros(rows), [6] * rows):
        given = np.asarray(slots, np.int32)
        tiles, order = tiles_of(given, height)
        assert rows_by_slot(tiles, order) == sorted_naively(given)
        assert len(tiles) <= most_tiles(rows, 7, height)
        assert all(1 <= count <= height for count in tiles[:, 2])
        assert tiles.dtype == order.dtype == np.int32


def test_lists_of_each_kind_of_rows() -> None:
    lists = ROWS.plan(broken(STEP, adapters=USED))
    expected = (TOKENS, [*LOGITS, -1, -1, 1], LOGITS)
    for i, slots in enumerate(expected):
        assert rows_by_slot(*lists[2 * i : 2 * i + 2]) == sorted_naively(np.array(slots))
    assert [len(each) for each in ROWS.plan(STEP)] == [0] * 6
    idle = ROWS.plan(broken(STEP, adapters=[-1] * 5))
    assert [each.size for each in idle] == [3, 0] * 3


def test_lists_of_a_padded_step_have_the_bucket_s_length() -> None:
    """Whatever is in the step; and none of its padding."""
    chunks = [Chunk(tokens_of(1, 9), 0, 9, [1]), Chunk(tokens_of(2, 1), 0, 1, [2])]
    lengths = []
    for adapters in ([], [2, 0], [-1, 1], [-1, -1]):
        step = broken(step_of(chunks), adapters=adapters)
        lists = ROWS.plan_padded(step, Bucket(16, 4))
        lengths.append([each.size for each in lists])
        tokens = np.repeat(adapters, [9, 1]) if adapters else np.array([])
        assert rows_by_slot(*lists[:2]) == sorted_naively(tokens)
        assert rows_by_slot(*lists[4:]) == sorted_naively(np.array(adapters))
    assert lengths == [[9, 16, 9, 4, 9, 4]] * 4


def test_room_for_any_step() -> None:
    """Also for fewer rows than the most, whose tiles are lower."""
    plan, _ = adapted("float32")
    rows = AdapterRows.of(plan, SLOTS)
    assert rows == ROWS
    bounds = step_bounds(plan, LIMITS)
    most = rows.most(bounds)
    assert most[1::2] == [96, 96, 24]
    for slots in (3, 500):
        many = AdapterRows(slots, ("T",))
        for tokens in (1, 255, 256, 257, 300):
            sizes = [3 * most_tiles(n, slots, tile_height(n)) for n in range(1, tokens + 1)]
            assert many.most(replace(bounds, max_tokens=tokens))[0] >= max(sizes)
