"""Draft trees: random ones, and the lines of tokens that their rows stand for."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.attention_parts import AttentionSequence, Heads, Part, sequence

Int32s = NDArray[np.int32]


@dataclass(frozen=True)
class Tree(Part):
    """Rows ``[start, end)`` of a sequence's cache that a step runs as a tree.

    ``sequence`` holds them in the order of the cache; ``parents`` are the step's.
    """

    parents: tuple[int, ...]


def ancestors(parents: Several[int], row: int) -> list[int]:
    """The rows that lead to ``row``, and it, ascending."""
    line = []
    while row >= 0:
        line.append(row)
        row = parents[row]
    return line[::-1]


def positions_of(part: Part) -> Int32s:
    """Return the position of each row that the step runs."""
    if not isinstance(part, Tree):
        return np.arange(part.start, part.end, dtype=np.int32)
    depths = [len(ancestors(part.parents, row)) - 1 for row in range(len(part.parents))]
    return np.array(depths, np.int32) + np.int32(part.start)


def parents_of(parts: Several[Part]) -> Int32s | None:
    """``StepInput.tree_parents``; None where no part is a tree."""
    if not any(isinstance(part, Tree) for part in parts):
        return None
    chains = (
        part.parents if isinstance(part, Tree) else range(-1, part.end - part.start - 1)
        for part in parts
    )
    return np.concatenate([np.array(parents, np.int32) for parents in chains])


def line_of(tree: Tree, row: int) -> Part:
    """What the row is without a tree: the last token of a sequence of what it sees, decoded."""
    places = [*range(tree.start), *(tree.start + r for r in ancestors(tree.parents, row))]
    s = tree.sequence
    return Part(
        AttentionSequence(s.q[places], s.k[places], s.v[places]), len(places) - 1, len(places)
    )


def make_tree(shape: Heads, start: int, parents: Several[int], seed: int) -> Tree:
    end = start + len(parents)
    return Tree(sequence(shape, end, seed), start, end, tuple(parents))


@st.composite
def parent_lists(draw: st.DrawFn, most: int = 24, trunk: int = 4) -> list[int]:
    """Trees of ``most`` rows or fewer, behind a trunk of ``trunk`` or fewer: bushy or deep."""
    before = draw(st.integers(0, trunk))
    rows = draw(st.integers(1, most))
    reach = draw(st.sampled_from([1, 2, 5, most]))  # how far back a parent lies: 1 is a chain
    parents = list(range(-1, before - 1))
    for row in range(before, before + rows):
        parents.append(draw(st.integers(max(before - 1, row - reach), row - 1)))
    return parents
