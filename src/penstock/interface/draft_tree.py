"""The shape of draft trees, as ``StepInput.tree_parents`` gives them."""

from __future__ import annotations

import numpy as np

from penstock.interface.step import Int32s, StepInput

MAX_ROWS = 64
"""Rows of a sequence behind its trunk: an executor may keep them in scratch, or a mask, of 64."""


def trunk_rows(parents: Int32s) -> int:
    """How many of a sequence's rows precede its first fork: each follows the one before it, and
    all later ones descend from it. All of them where nothing branches.

    ``parents`` int32 ``[rows]``, the sequence's part of ``StepInput.tree_parents``.
    """
    forks = parents[parents != np.arange(-1, len(parents) - 1)]
    return int(forks.min()) + 1 if len(forks) else len(parents)


def path_rows(parents: Int32s, row: int, trunk: int) -> list[int]:
    """The rows behind the trunk that lead to ``row``, and it: ascending, one a position."""
    path = []
    while row >= trunk:
        path.append(row)
        row = int(parents[row])
    return path[::-1]


def check_tree(step: StepInput) -> None:
    """Raise ValueError where ``tree_parents`` are no trees, or positions are not their depths.

    ``step.query_starts`` and the lengths of the other arrays must have been checked.
    """
    if not len(step.tree_parents):
        return
    if len(step.tree_parents) != step.num_tokens:
        raise ValueError(
            f"a step has {len(step.tree_parents)} tree_parents for {step.num_tokens} tokens: one "
            "each, or none at all"
        )
    for s in range(step.num_sequences):
        first, end = int(step.query_starts[s]), int(step.query_starts[s + 1])
        _check(step, s, slice(first, end), int(step.context_lens[s]) - (end - first))


def _check(step: StepInput, sequence: int, rows: slice, start: int) -> None:
    parents, positions = step.tree_parents[rows], step.positions[rows]
    index = np.arange(len(parents))
    wrong = np.flatnonzero((parents < -1) | (parents >= index))
    if len(wrong):
        raise ValueError(
            f"row {wrong[0]} of sequence {sequence} of the step has the parent "
            f"{parents[wrong[0]]}: a parent is a row before it in its sequence, or -1"
        )
    expected = np.where(parents < 0, start, positions[parents] + 1)
    wrong = np.flatnonzero(positions != expected)
    if len(wrong):
        raise ValueError(
            f"row {wrong[0]} of sequence {sequence} of the step has position "
            f"{positions[wrong[0]]} where its parent has {expected[wrong[0]] - 1}"
        )
    branching = len(parents) - trunk_rows(parents)
    if branching > MAX_ROWS:
        raise ValueError(
            f"sequence {sequence} of the step has {branching} rows that branch; a draft tree has "
            f"at most {MAX_ROWS}"
        )
