"""What a tree of rows is, and which are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.draft_trees import ancestors, parent_lists

from penstock.interface.draft_tree import MAX_ROWS, check_tree, path_rows, trunk_rows
from penstock.interface.step import KvTables, StepInput

NONE = np.zeros(0, np.int32)


def ints(values: list[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def step_of(trees: list[list[int]], start: int = 40) -> StepInput:
    """Sequences that have ``start`` tokens in the cache, each with a tree."""
    counts = [len(parents) for parents in trees]
    positions = [
        start + len(ancestors(parents, row)) - 1 for parents in trees for row in range(len(parents))
    ]
    return StepInput(
        token_ids=np.zeros(sum(counts), np.int32),
        positions=ints(positions),
        groups=(KvTables(np.zeros(sum(counts), np.int32), NONE, NONE),),
        query_starts=np.cumsum([0, *counts], dtype=np.int32),
        context_lens=ints([start + count for count in counts]),
        logit_rows=NONE,
        block_copies=NONE.reshape(0, 2),
        tree_parents=ints([parent for parents in trees for parent in parents]),
    )


@given(parents=parent_lists())
def test_the_trunk_is_what_all_later_rows_descend_from(parents: list[int]) -> None:
    lines = [ancestors(parents, row) for row in range(len(parents))]
    trunk = 0
    while trunk < len(parents) and all(trunk in line for line in lines[trunk:]):
        trunk += 1
    assert trunk_rows(ints(parents)) == trunk
    for row in range(trunk, len(parents)):
        assert [*range(trunk), *path_rows(ints(parents), row, trunk)] == lines[row]


@given(trees=st.lists(parent_lists(), min_size=1, max_size=3))
def test_trees_are_accepted(trees: list[list[int]]) -> None:
    check_tree(step_of(trees))


def test_a_step_without_trees_is_not_looked_at() -> None:
    check_tree(replace(step_of([[-1, 0]]), tree_parents=NONE, positions=ints([7, 7])))


@given(trees=st.lists(parent_lists(), min_size=1, max_size=3), data=st.data())
@settings(deadline=None)
def test_what_is_no_tree_is_refused_by_its_row(trees: list[list[int]], data: st.DataObject) -> None:
    s = data.draw(st.integers(0, len(trees) - 1))
    row = data.draw(st.integers(0, len(trees[s]) - 1))
    bad = data.draw(st.integers(-(2**31), -2) | st.integers(row, 2**31 - 1))
    step = step_of(trees)
    at = int(step.query_starts[s]) + row
    parents, positions = step.tree_parents.copy(), step.positions.copy()
    parents[at] = bad
    with pytest.raises(ValueError, match=f"row {row} of sequence {s} .* the parent {bad}: a paren"):
        check_tree(replace(step, tree_parents=parents))
    positions[at] += data.draw(st.integers(-30, 30).filter(bool))
    with pytest.raises(ValueError, match=f"row {row} of sequence {s} .* has position"):
        check_tree(replace(step, positions=positions))


def test_bounds_are_named() -> None:
    check_tree(step_of([[-1, *[0] * MAX_ROWS]]))
    with pytest.raises(ValueError, match=r"sequence 1 .* 65 rows that branch; .* at most 64"):
        check_tree(step_of([[-1], [-1, *[0] * (MAX_ROWS + 1)]]))
    check_tree(step_of([list(range(-1, 300))]))  # a chain may have any length
    with pytest.raises(ValueError, match="3 tree_parents for 4 tokens"):
        check_tree(replace(step_of([[-1, 0, 0, 1]]), tree_parents=ints([-1, 0, 0])))
