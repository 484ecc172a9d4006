"""Rows of draft trees have the bits of decoding their path; tokens move between slots whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from support.attention_parts import Part, sequence  # noqa: E402
from support.cuda_attention import Shape, launch, make, run  # noqa: E402
from support.draft_trees import Tree, line_of, make_tree, parent_lists, parents_of, positions_of  # noqa: E402

from penstock.backends.cuda.attention_plan import tree_paths  # noqa: E402
from penstock.backends.cuda.kernels.rows import move_slots  # noqa: E402
from penstock.cache.geometry import BLOCK_SIZE, Chunk, KvDType, Window  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]

BUSHY = [-1, 0, 0, 1, 2, 4, 4, 3, 6, 8, 9, 10, 1]


def run_tree(device: Any, shape: Shape, parts: list[Part], programs: int | None = None) -> Any:
    """As ``cuda_attention.run``, of parts some of which are trees."""
    kernel = shape.kernel(device, programs)
    cache, step = make(shape, parts, device)
    parents = parents_of(parts)
    assert parents is not None
    positions = np.concatenate([positions_of(part) for part in parts])
    step = replace(step, positions=positions, tree_parents=parents)
    return launch(kernel, shape, parts, cache, step, kernel.plan_work(step))


def check(device: Any, shape: Shape, tree: Tree, rows: Any, picked: list[int]) -> None:
    alone = run(device, shape, [line_of(tree, row) for row in picked])
    for row, (line,) in zip(picked, alone, strict=True):
        np.testing.assert_array_equal(rows[row].view(np.uint32), line.view(np.uint32))


@pytest.mark.thinned(7)
@pytest.mark.parametrize(
    ("kv", "window", "start"),
    [
        ("bfloat16", None, 57),
        ("float32", None, 250),
        ("int8", None, 62),
        ("float16", None, 0),
        ("int8", 5, 63),
        ("bfloat16", 70, 128),
        ("bfloat16", 300, 510),
        ("float32", Chunk(61), 57),
        ("bfloat16", Chunk(512), 508),
    ],
)
def test_a_row_of_a_tree_is_a_decoded_token(
    device: Any, kv: KvDType, window: Window | None, start: int
) -> None:
    """Contexts end around tiles of 64 keys and splits of 256, and a chunk and a decoded token are
    beside the tree."""
    shape = Shape(6, 2, 16, kv, window)
    tree = make_tree(shape, start, BUSHY, 4)
    others = [Part(sequence(shape, 70, 1), 61, 67), Part(sequence(shape, 129, 2), 128, 129)]
    before, rows, behind = run_tree(device, shape, [others[0], tree, others[1]])
    check(device, shape, tree, rows, list(range(len(BUSHY))))
    for got, plain in zip((before, behind), run(device, shape, others), strict=True):
        np.testing.assert_array_equal(got.view(np.uint32), plain.view(np.uint32))


@pytest.mark.slow
@given(
    parents=parent_lists(most=20), start=st.integers(0, 320), programs=st.sampled_from([1, 3, 64])
)
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_tree(device: Any, parents: list[int], start: int, programs: int) -> None:
    """Tiles of more than one token, and of several; with 64 programs also cut into parts."""
    shape = Shape(7, 1, 16, "bfloat16")
    tree = make_tree(shape, start, parents, start)
    (rows,) = run_tree(device, shape, [tree], programs)
    check(device, shape, tree, rows, sorted({0, len(parents) // 2, len(parents) - 1}))


def test_a_sibling_that_is_not_finite_is_not_seen(device: Any) -> None:
    shape = Shape(2, 1, 16, "bfloat16")
    tree = make_tree(shape, 30, [-1, 0, 0, 1, 2, 3], 6)
    (clean,) = run_tree(device, shape, [tree])
    tree.sequence.k[32] = tree.sequence.v[32] = np.nan  # row 2
    (rows,) = run_tree(device, shape, [tree])
    np.testing.assert_array_equal(rows[[0, 1, 3, 5]], clean[[0, 1, 3, 5]])
    assert np.isnan(rows[[2, 4]]).all()


def test_paths_name_places_in_the_cache(device: Any) -> None:
    shape = Shape()
    parts = [
        make_tree(shape, 10, [-1, 0, 0, 2], 1),
        Part(sequence(shape, 5, 2), 2, 5),
        make_tree(shape, 0, [-1, -1], 3),
    ]
    _, step = make(shape, parts, device)
    paths = tree_paths(replace(step, tree_parents=parents_of(parts)))
    assert [row[row != 0].tolist() for row in paths] == [[11], [12], [12, 13], [], [1]]


@pytest.mark.parametrize("columns", [(16,), (50,), ()])
def test_moves_are_made_one_after_another(device: Any, columns: tuple[int, ...]) -> None:
    """Keys and values, or scales: what a slot holds is what was last moved there."""
    rng = np.random.default_rng(1)
    data = torch.from_numpy(rng.standard_normal((3, 2, BLOCK_SIZE, *columns), dtype=np.float32))
    moves = rng.integers(0, 3 * BLOCK_SIZE, (20, 2), dtype=np.int32)
    by_slot = data.clone().transpose(1, 2).reshape(3 * BLOCK_SIZE, 2, -1)
    for source, target in moves.tolist():
        by_slot[target] = by_slot[source].clone()
    moved = data.to(device)
    move_slots(torch.from_numpy(moves).to(device), moved)
    got = moved.cpu().transpose(1, 2).reshape(3 * BLOCK_SIZE, 2, -1)
    assert torch.equal(got, by_slot)
