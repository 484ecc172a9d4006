"""Steps of models that draft, put together from what their proposers want computed."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from penstock.cache.kv_cache import BlockTable
from penstock.engine.step import BLOCK_SIZE, Int32s, StepInput


def slots_of(blocks: Int32s, first_blocks: Int32s, at: Int32s) -> Int32s:
    """Where keys and values go of the ``at``-th tokens of tables that begin at ``first_blocks``."""
    block: Int32s = blocks[first_blocks + at // BLOCK_SIZE]
    return block * np.int32(BLOCK_SIZE) + at % BLOCK_SIZE


def offsets(counts: list[int]) -> Int32s:
    """Where each of parts of so many elements begins, and where the last ends."""
    return np.array([0, *np.cumsum(counts)], dtype=np.int32)


class StepRows:
    """Collects the rows of one step of a head, with ``features`` columns of features."""

    def __init__(self, features: int) -> None:
        self._width = features
        self._tokens: list[array[int]] = []
        self._tables: list[BlockTable] = []
        self._starts: list[int] = []
        self._positions: list[int] = []
        self._logits: list[int] = []
        self._parents: list[int] = []
        self._features: list[NDArray[np.float32]] = []
        self._branches = False

    def add(
        self,
        table: BlockTable,
        start: int,
        tokens: array[int],
        positions: Seq[int],
        num_logits: int,
        parents: Seq[int] | None = None,
    ) -> NDArray[np.float32]:
        """``tokens`` from slot ``start`` on, the last ``num_logits`` of them with logits.

        ``parents`` as in ``StepInput.tree_parents``; None: each follows the one before it. Returns
        their features ``[tokens, features]``, zeros that are to be filled.
        """
        self._tables.append(table)
        self._starts.append(start)
        self._tokens.append(tokens)
        self._positions += positions
        rows = len(self._positions)
        self._logits += range(rows - num_logits, rows)
        self._branches |= parents is not None
        self._parents += range(-1, len(tokens) - 1) if parents is None else parents
        self._features.append(np.zeros((len(tokens), self._width), np.float32))
        return self._features[-1]

    def step_input(self) -> StepInput:
        tables = [table.block_ids for table in self._tables]
        blocks = np.frombuffer(b"".join(tables), np.int32)
        block_starts = offsets([len(table) for table in tables])
        counts = [len(tokens) for tokens in self._tokens]
        query_starts = offsets(counts)
        starts = np.array(self._starts, np.int32)
        owner = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        at = np.arange(len(owner), dtype=np.int32) + (starts - query_starts[:-1])[owner]
        return StepInput(
            token_ids=np.frombuffer(b"".join(self._tokens), np.int32),
            positions=np.array(self._positions, np.int32),
            slots=slots_of(blocks, block_starts[:-1][owner], at),
            query_starts=query_starts,
            context_lens=starts + np.array(counts, np.int32),
            block_starts=block_starts,
            block_ids=blocks,
            logit_rows=np.array(self._logits, np.int32),
            block_copies=np.empty((0, 2), np.int32),
            tree_parents=np.array(self._parents if self._branches else [], np.int32),
            features=np.concatenate(self._features),
        )
