"""Builds the ``StepInput`` of draft models and heads."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from penstock.cache.geometry import BLOCK_SIZE
from penstock.cache.kv_cache import BlockTable
from penstock.interface.step import Int32s, StepInput

NO_COPIES = np.empty((0, 2), np.int32)
_NO_FEATURES = np.empty((0, 0), np.float32)


def slots_of(blocks: Int32s, first_blocks: Int32s, at: Int32s) -> Int32s:
    """Return the cache slots of tokens ``at`` of block tables that begin at ``first_blocks``."""
    block: Int32s = blocks[first_blocks + at // BLOCK_SIZE]
    return block * np.int32(BLOCK_SIZE) + at % BLOCK_SIZE


def offsets(counts: list[int]) -> Int32s:
    """Return the exclusive prefix sums of ``counts``, with their total at the end."""
    return np.array([0, *np.cumsum(counts)], dtype=np.int32)


class ChainSteps:
    """Consecutive decode steps of one token a sequence.

    The arrays of all steps are made at once: for one sequence, making them takes as long as a step
    of a small model.
    """

    def __init__(self, blocks: Int32s, block_starts: Int32s, ends: Int32s, steps: int) -> None:
        """Prepare ``steps`` steps.

        In them, sequence i continues at position ``ends[i]`` of its block table, which is
        ``blocks[block_starts[i]:]``.
        """
        count = len(ends)
        self._blocks, self._block_starts = blocks, block_starts
        self._positions = ends + np.arange(steps, dtype=np.int32)[:, None]
        # Sequences that end earlier have tables that do: what is read beyond is not used.
        indices = block_starts[:count] + self._positions // BLOCK_SIZE
        block = blocks[np.minimum(indices, len(blocks) - 1)]
        self._slots = block * np.int32(BLOCK_SIZE) + self._positions % BLOCK_SIZE
        self._contexts = self._positions + 1
        self._numbers = np.arange(count + 1, dtype=np.int32)

    def step_input(
        self, at: int, tokens: Int32s, features: NDArray[np.float32] = _NO_FEATURES
    ) -> StepInput:
        """Return step ``at`` of the first ``len(tokens)`` sequences, all of which get logits."""
        rows = len(tokens)
        table_ends = self._block_starts[: rows + 1]
        return StepInput(
            token_ids=tokens,
            positions=self._positions[at, :rows],
            slots=self._slots[at, :rows],
            query_starts=self._numbers[: rows + 1],
            context_lens=self._contexts[at, :rows],
            block_starts=table_ends,
            block_ids=self._blocks[: table_ends[-1]],
            logit_rows=self._numbers[:rows],
            block_copies=NO_COPIES,
            features=features,
        )


class DraftBatch:
    """Collects the rows of one step of an EAGLE head, with ``features`` columns of features."""

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
        """Add ``tokens`` of a sequence from cache position ``start`` on.

        The last ``num_logits`` of them get logits. ``parents`` is as in ``StepInput.tree_parents``;
        None means a chain. Returns their features, zeros ``[tokens, features]``, for the caller to
        fill.
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
        """Return the step that was collected."""
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
            block_copies=NO_COPIES,
            tree_parents=np.array(self._parents if self._branches else [], np.int32),
            features=np.concatenate(self._features),
        )
