"""Builds every ``StepInput``: the engine's steps, and those of models and heads that draft.

Python goes over the sequences once per column; positions, slots and rows are computed for all
tokens at once. A step that only decodes has one token a sequence, which saves most columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import NamedTuple, TypeAlias

import numpy as np

from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.step import Float32s, Int32s, KvTables, StateTables, StepInput

Tables: TypeAlias = "Sequence[Sequence[array[int]]]"
"""Block ids of each sequence, for each KV group. A sequence has as many in every group."""

_NO_PAIRS = np.empty((0, 2), np.int32)
_NO_ROWS = np.empty(0, np.int32)
_NO_FEATURES = np.empty((0, 0), np.float32)


class Tree(NamedTuple):
    """The rows of a sequence that branch."""

    sequence: int
    """Number of the sequence in the step."""
    known: int
    """Number of its rows before these, of which each follows the one before it."""
    parents: Sequence[int]
    """Parent of each of these rows: the index among them of the row that it follows; -1: the last
    of the rows before them."""


def build_step(
    tokens: Sequence[array[int]],
    starts: Sequence[int],
    tables: Tables,
    *,
    num_logits: Sequence[int] | None = None,
    num_hidden: Sequence[int] | None = None,
    trees: Sequence[Tree] = (),
    block_copies: Sequence[tuple[int, int]] = (),
    slot_moves: Sequence[tuple[int, int]] = (),
    features: Float32s = _NO_FEATURES,
    states: StateTables | None = None,
    block_size: int = BLOCK_SIZE,
    adapters: Sequence[int] = (),
) -> StepInput:
    """Build a step's arrays, fresh ones every time.

    ``tokens`` has each sequence's tokens, at least one; ``starts`` how many tokens of it are in the
    cache before them. ``tables`` is empty for a model without a cache. The last ``num_logits`` rows
    of each sequence get logits (None: all), and the ``num_hidden`` before those are returned as
    hidden states (None: none). ``states`` are of a model whose layers keep states, and ``adapters``
    the slots of the sequences' adapters, where one has any. A cache's blocks
    have ``block_size`` tokens, which is ``BLOCK_SIZE`` for every executor that has a memory of its
    own.
    """
    first_tokens = np.array(starts, dtype=np.int32)
    token_ids = np.frombuffer(b"".join(tokens), dtype=np.int32)
    count = len(token_ids)
    rows = np.arange(count, dtype=np.int32)
    owner: slice | Int32s  # of each row, the sequence; a slice means: each its own
    if count == len(tokens):
        query_starts, owner = np.arange(count + 1, dtype=np.int32), slice(None)
        positions, context_lens = first_tokens, first_tokens + 1
    else:
        query_starts = _offsets([len(t) for t in tokens])
        counts = np.diff(query_starts)
        context_lens = first_tokens + counts
        owner = np.repeat(np.arange(len(tokens), dtype=np.int32), counts)
        positions = rows + (first_tokens - query_starts[:-1])[owner]
    groups: tuple[KvTables, ...] = ()
    if tables:
        block_starts = _offsets([len(table) for table in tables[0]])
        places = block_starts[:-1][owner] + positions // block_size
        groups = _tables(tables, block_starts, places, positions % block_size, block_size)
    parents = _place_trees(trees, query_starts, positions) if trees else _NO_ROWS
    logit_rows, hidden_rows = rows, _NO_ROWS
    if num_logits is not None:
        to_end = query_starts[1:][owner] - rows
        wanted = np.array(num_logits, dtype=np.int32)
        logit_rows = rows[to_end <= wanted[owner]]
        if num_hidden is not None:
            wanted_hidden = wanted + np.array(num_hidden, dtype=np.int32)
            hidden_rows = rows[(to_end <= wanted_hidden[owner]) & (to_end > wanted[owner])]
    return StepInput(
        token_ids=token_ids,
        positions=positions,
        query_starts=query_starts,
        context_lens=context_lens,
        groups=groups,
        logit_rows=logit_rows,
        block_copies=_pairs(block_copies),
        hidden_rows=hidden_rows,
        tree_parents=parents,
        slot_moves=_pairs(slot_moves),
        features=features,
        states=states,
        adapters=np.array(adapters, dtype=np.int32) if adapters else _NO_ROWS,
    )


def state_tables(
    slots: Sequence[int],
    seen: Sequence[int],
    tentative: Sequence[int],
    snapshots: Sequence[tuple[int, int, int]],
    copies: Sequence[tuple[int, int]],
) -> StateTables:
    """Build a step's state tables, fresh arrays every time."""
    return StateTables(
        slots=np.array(slots, dtype=np.int32),
        seen=np.array(seen, dtype=np.int32),
        tentative=np.array(tentative, dtype=np.int32),
        snapshots=np.array(snapshots, dtype=np.int32).reshape(-1, 3),
        copies=_pairs(copies),
    )


class ChainSteps:
    """Consecutive decode steps of one token a sequence.

    The arrays of all steps are made at once: for one sequence, making them takes as long as a step
    of a small model.
    """

    def __init__(self, tables: Tables, ends: Int32s, steps: int) -> None:
        """Prepare ``steps`` steps, in which sequence i continues at position ``ends[i]``."""
        count = len(ends)
        self._block_starts = _offsets([len(table) for table in tables[0]])
        self._positions = ends + np.arange(steps, dtype=np.int32)[:, None]
        places = self._block_starts[:count] + self._positions // BLOCK_SIZE
        # Sequences that end earlier have tables that do: what is read beyond is not used.
        places = np.minimum(places, self._block_starts[-1] - 1)
        offsets = self._positions % BLOCK_SIZE
        self._groups = _tables(tables, self._block_starts, places, offsets, BLOCK_SIZE)
        self._contexts = self._positions + 1
        self._numbers = np.arange(count + 1, dtype=np.int32)

    def step_input(self, at: int, tokens: Int32s, features: Float32s = _NO_FEATURES) -> StepInput:
        """Return step ``at`` of the first ``len(tokens)`` sequences, all of which get logits."""
        rows = len(tokens)
        starts = self._block_starts[: rows + 1]
        return StepInput(
            token_ids=tokens,
            positions=self._positions[at, :rows],
            query_starts=self._numbers[: rows + 1],
            context_lens=self._contexts[at, :rows],
            groups=tuple(
                KvTables(slots[at, :rows], starts, block_ids[: starts[-1]])
                for slots, _, block_ids in self._groups
            ),
            logit_rows=self._numbers[:rows],
            block_copies=_NO_PAIRS,
            features=features,
        )


def _tables(
    tables: Tables, block_starts: Int32s, places: Int32s, offsets: Int32s, block_size: int
) -> tuple[KvTables, ...]:
    """The tables of all groups; ``places`` index a group's block ids, of one sequence after the
    other.

    All ids are in one piece of memory. In a piece for each group, long tables took five times as
    long (16 sequences of 128K tokens in 6 groups, 1.5 MB: 0.5 ms, now 0.1): freed together, such
    pieces went back to the system, and every step had new pages.
    """
    if len(tables) == 1:  # a dimension fewer saves a microsecond
        ids = np.frombuffer(b"".join(tables[0]), dtype=np.int32)
        slots = ids[places] * np.int32(block_size)
        slots += offsets
        return (KvTables(slots, block_starts, ids),)
    flat = np.frombuffer(b"".join(chain.from_iterable(tables)), dtype=np.int32)
    ids = flat.reshape(len(tables), -1)
    slots = ids.take(places, axis=1) * np.int32(block_size)
    slots += offsets
    return tuple(map(KvTables, slots, (block_starts,) * len(tables), ids))


def _place_trees(trees: Sequence[Tree], query_starts: Int32s, positions: Int32s) -> Int32s:
    """``StepInput.tree_parents``; ``positions`` are put right."""
    within = np.diff(query_starts)
    parents = np.arange(len(positions), dtype=np.int32) - np.repeat(query_starts[:-1] + 1, within)
    for sequence, known, relative in trees:
        first = int(query_starts[sequence]) + known
        parents[first : first + len(relative)] = np.array(relative, np.int32) + known
        start = int(positions[first])  # those of a chain, until they are put right
        for row, parent in enumerate(relative, first):
            positions[row] = start if parent < 0 else positions[first + parent] + 1
    return parents


def _pairs(pairs: Sequence[tuple[int, int]]) -> Int32s:
    return np.array(pairs, dtype=np.int32) if pairs else _NO_PAIRS


def _offsets(counts: list[int]) -> Int32s:
    return np.array([0, *accumulate(counts)], dtype=np.int32)
