"""Collects the steps of an EAGLE head."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.cache.block_table import BlockTable
from penstock.interface.step import StepInput
from penstock.interface.step_builder import Tree, build_step


class DraftBatch:
    """Collects the rows of one step of an EAGLE head, with ``features`` columns of features."""

    def __init__(self, features: int) -> None:
        self._width = features
        self._tokens: list[array[int]] = []
        self._tables: list[BlockTable] = []
        self._starts: list[int] = []
        self._logits: list[int] = []
        self._trees: list[Tree] = []
        self._features: list[NDArray[np.float32]] = []

    def add(
        self,
        table: BlockTable,
        start: int,
        tokens: array[int],
        num_logits: int,
        parents: Sequence[int] | None = None,
    ) -> NDArray[np.float32]:
        """Add ``tokens`` of a sequence from cache position ``start`` on.

        The last ``num_logits`` of them get logits. ``parents`` is as in ``StepInput.tree_parents``;
        None means a chain. Returns their features, zeros ``[tokens, features]``, for the caller to
        fill.
        """
        if parents is not None:
            self._trees.append(Tree(len(self._tables), 0, parents))
        self._tables.append(table)
        self._starts.append(start)
        self._tokens.append(tokens)
        self._logits.append(num_logits)
        self._features.append(np.zeros((len(tokens), self._width), np.float32))
        return self._features[-1]

    def step_input(self) -> StepInput:
        """Return the step that was collected."""
        return build_step(
            self._tokens,
            self._starts,
            list(zip(*[table.blocks for table in self._tables], strict=True)),
            num_logits=self._logits,
            trees=self._trees,
            features=np.concatenate(self._features),
        )
