"""A sequence run through draft trees by any executor, beside the same tokens decoded plainly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.step import Int32s, StepInput
from support.draft_trees import ancestors
from support.tiny_plans import Chunk, step_of

F32 = NDArray[np.float32]


@dataclass
class Branches(Chunk):
    """A chunk whose rows are a tree; ``tokens`` are in the order of the cache."""

    parents: tuple[int, ...] = ()


def tree_step(
    chunks: Sequence[Chunk],
    copies: Sequence[tuple[int, int]] = (),
    moves: Sequence[tuple[int, int]] = (),
) -> StepInput:
    step = step_of(chunks, copies)
    parents, positions = [], []
    for chunk in chunks:
        rows = range(chunk.stop - chunk.start)
        own = chunk.parents if isinstance(chunk, Branches) else range(-1, len(rows) - 1)
        parents += list(own)
        positions += [chunk.start + len(ancestors(list(own), row)) - 1 for row in rows]
    return replace(
        step,
        positions=np.array(positions, np.int32),
        tree_parents=np.array(parents, np.int32),
        slot_moves=np.array(moves, np.int32).reshape(-1, 2),
    )


@dataclass
class Accepted:
    """The tokens of a sequence that are known, in the blocks where they lie."""

    tokens: Int32s
    blocks: list[int]
    moves: list[tuple[int, int]] = field(default_factory=list)  # for the next step to make

    def branches(self, tokens: Int32s, parents: Sequence[int]) -> Branches:
        """A tree behind what is known; every row gets logits."""
        start = len(self.tokens)
        places = range(start, start + len(tokens))
        both = np.concatenate([self.tokens, tokens])
        return Branches(both, start, places.stop, self.blocks, list(places), parents=tuple(parents))

    def accept(self, tree: Branches, row: int) -> list[int]:
        """Take over the path to ``row``; returns its rows."""
        path = ancestors(tree.parents, row)
        for depth, at in enumerate(path):
            if depth != at:
                self.moves.append((self._slot(tree.start + at), self._slot(tree.start + depth)))
        self.tokens = np.concatenate([self.tokens, tree.tokens[tree.start :][path]])
        return path

    def _slot(self, place: int) -> int:
        return self.blocks[place // BLOCK_SIZE] * BLOCK_SIZE + place % BLOCK_SIZE
