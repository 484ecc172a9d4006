"""Rows of draft trees have the bits of plain decoding; tokens move between slots whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention_parts import Part, sequence
from support.draft_trees import Tree, line_of, make_tree, parent_lists
from support.native_attention import attend
from support.native_cache import ELEMENTS, Cache, Shape, fitted
from support.needs import needs_native

from penstock.backends.cpu import native
from penstock.cache.geometry import BLOCK_SIZE

VARIANTS = native.runnable()

pytestmark = [needs_native, pytest.mark.thinned(5)]

# Starts of trees around the ends of blocks and of splits, and far enough behind two of these.
STARTS = st.sampled_from([0, 1, 17, 31, 32, 33, 63, 225, 240, 255, 256, 257, 290, 511, 513])


def check(module: Any, shape: Shape, tree: Tree, others: list[Part], threads: int) -> None:
    """The tree's rows beside those of other parts, and each alone, decoded without a tree."""
    at = len(others) // 2
    parts = [*others[:at], tree, *others[at:]]
    together = attend(module, shape, parts, threads, seed=1)
    rows = together.pop(at)
    picked = {0, len(rows) // 2, len(rows) - 2, len(rows) - 1} & set(range(len(rows)))
    for row in picked | {int(np.argmax(tree.parents))}:
        (alone,) = attend(module, shape, [line_of(tree, row)], seed=row)
        np.testing.assert_array_equal(rows[row].view(np.uint32), alone[0].view(np.uint32))
    if others:
        plain = attend(module, shape, others, threads)
        for a, b in zip(together, plain, strict=True):
            np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("element", ELEMENTS)
@given(
    start=STARTS,
    parents=parent_lists(),
    heads=st.sampled_from([(4, 2), (3, 3), (7, 1), (40, 1)]),
    head_dim=st.sampled_from([8, 32, 50, 64]),
    sight=st.sampled_from([(0, 0), (1, 0), (9, 0), (40, 0), (260, 0), (0, 6), (0, 40), (0, 256)]),
    threads=st.integers(1, 3),
    company=st.booleans(),
)
@settings(max_examples=12, deadline=None)
def test_a_row_of_a_tree_is_a_decoded_token(
    element: str,
    start: int,
    parents: list[int],
    heads: tuple[int, int],
    head_dim: int,
    sight: tuple[int, int],
    threads: int,
    company: bool,
) -> None:
    shape = Shape(*heads, fitted(head_dim, element), element, sight[0], chunk=sight[1])
    others = [Part(sequence(shape, n, n), first, n) for first, n in ((69, 70), (3, 40))]
    tree = make_tree(shape, start, parents, seed=len(parents))
    for isa in VARIANTS:
        check(native.load(isa), shape, tree, others if company else [], threads)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("start", [31, 200])
def test_the_largest_trees(module: Any, start: int, element: str) -> None:
    """64 rows behind the trunk: a fork at once, and the longest path, through three blocks."""
    shape = Shape(6, 2, 32, element)
    for parents in ([-1, *range(63), 0], [-1, *[0] * 64]):
        check(module, shape, make_tree(shape, start, parents, 3), [], threads=2)


@pytest.mark.parametrize("element", ELEMENTS)
def test_a_chain_given_as_a_tree_is_a_chain(module: Any, element: str) -> None:
    shape = Shape(6, 2, 32, element)
    tree = make_tree(shape, 250, range(-1, 19), 5)
    (rows,) = attend(module, shape, [tree])
    (plain,) = attend(module, shape, [Part(tree.sequence, 250, 270)])
    np.testing.assert_array_equal(rows.view(np.uint32), plain.view(np.uint32))


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("threads", [2, 3])
def test_long_contexts_are_cut_for_threads_before_a_fork(
    module: Any, threads: int, element: str
) -> None:
    """One KV head and splits on both sides of the fork: partials are merged across items."""
    shape = Shape(5, 1, 32, element)
    tree = make_tree(shape, 1272, [-1, 0, 1, 1, 2, 4, 5, 3, 7, 8, 9, 10], 8)
    (one,) = attend(module, shape, [tree], threads=1)
    (many,) = attend(module, shape, [tree], threads=threads, layers=3)
    np.testing.assert_array_equal(one.view(np.uint32), many.view(np.uint32))
    check(module, shape, tree, [], threads)


@pytest.mark.parametrize("element", ["float32", "bfloat16", "int8"])
def test_a_sibling_that_is_not_finite_is_not_seen(module: Any, element: str) -> None:
    shape = Shape(2, 1, 32, element)
    tree = make_tree(shape, 30, [-1, 0, 0, 1, 2, 3], 6)
    (clean,) = attend(module, shape, [tree])
    tree.sequence.k[32] = tree.sequence.v[32] = np.nan  # row 2
    (rows,) = attend(module, shape, [tree])
    np.testing.assert_array_equal(rows[[0, 1, 3, 5]], clean[[0, 1, 3, 5]])
    assert np.isnan(rows[[2, 4]]).all()


@pytest.mark.parametrize("element", ELEMENTS)
@given(
    moves=st.lists(st.tuples(st.integers(0, 95), st.integers(0, 95)), max_size=12),
    head_dim=st.sampled_from([8, 50, 64]),
)
@settings(max_examples=15, deadline=None)
def test_moves_are_made_one_after_another(
    element: str, moves: list[tuple[int, int]], head_dim: int
) -> None:
    """What a slot holds after them is what it would hold, had it been written there."""
    head_dim = fitted(head_dim, element)
    shape = Shape(4, 2, head_dim, element)
    s = sequence(shape, 3 * BLOCK_SIZE, 2)
    before, after = Cache(shape, 3), Cache(shape, 3)
    held = list(range(3 * BLOCK_SIZE))
    for source, target in moves:
        held[target] = held[source]
    for slot, token in enumerate(held):
        before.write(slot, s.k[slot], s.v[slot])
        after.write(slot, s.k[token], s.v[token])
    start = before.bytes.copy()
    for isa in VARIANTS:
        before.bytes[:] = start
        native.load(isa).move_slots(
            before.bytes,
            element,
            kv_heads=2,
            head_dim=head_dim,
            moves=np.array(moves, np.int32).reshape(-1, 2),
        )
        np.testing.assert_array_equal(before.bytes, after.bytes)
