"""Turns a scheduled step into the arrays that an executor reads."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.step import Int32s, StepInput
from penstock.scheduler.output import ScheduledStep


def build_step_input(step: ScheduledStep, block_size: int = BLOCK_SIZE) -> StepInput:
    """Build the step's arrays, fresh ones every time.

    Python goes over the sequences once per column; positions, slots and rows are computed for all
    tokens at once. A step that only decodes has one token and one row of logits a sequence, which
    saves the columns of these.
    """
    scheduled, num_tokens = step.sequences, step.num_tokens
    tokens = [e.sequence.token_ids[e.start : e.start + e.num_tokens] for e in scheduled]
    tables = [e.sequence.table.block_ids for e in scheduled]
    if step.num_drafted:
        for i, each in enumerate(scheduled):
            if each.draft is not None:
                tokens[i] = tokens[i] + each.draft.token_ids
    blocks = np.frombuffer(b"".join(tables), dtype=np.int32)
    block_starts = _offsets([len(table) for table in tables])
    starts = np.array([e.start for e in scheduled], dtype=np.int32)
    rows = np.arange(num_tokens, dtype=np.int32)
    owner: slice | Int32s  # of each row, the sequence; a slice means: each its own
    if num_tokens == len(scheduled):
        query_starts, owner = np.arange(num_tokens + 1, dtype=np.int32), slice(None)
        positions, context_lens = starts, starts + 1
    else:
        query_starts = _offsets([e.num_tokens for e in scheduled])
        context_lens = starts + np.diff(query_starts)
        owner = np.repeat(np.arange(len(scheduled), dtype=np.int32), np.diff(query_starts))
        positions = rows + (starts - query_starts[:-1])[owner]
    slots = blocks[block_starts[:-1][owner] + positions // block_size] * np.int32(block_size)
    slots += positions % block_size
    nothing = rows[:0]
    parents = nothing
    if step.num_drafted:
        parents = _place_trees(step, query_starts, positions)
    logit_rows, hidden_rows = rows, nothing
    if step.num_logits < num_tokens:
        to_end = query_starts[1:][owner] - rows
        num_logits = np.array([e.num_logits for e in scheduled], dtype=np.int32)
        logit_rows = rows[to_end <= num_logits[owner]]
        if step.num_hidden:
            told = num_logits + np.array([e.num_hidden for e in scheduled], dtype=np.int32)
            hidden_rows = rows[(to_end <= told[owner]) & (to_end > num_logits[owner])]
    return StepInput(
        token_ids=np.frombuffer(b"".join(tokens), dtype=np.int32),
        positions=positions,
        slots=slots,
        query_starts=query_starts,
        context_lens=context_lens,
        block_starts=block_starts,
        block_ids=blocks,
        logit_rows=logit_rows,
        block_copies=_pairs(step.block_copies),
        hidden_rows=hidden_rows,
        tree_parents=parents,
        slot_moves=_pairs(step.slot_moves),
    )


def _place_trees(step: ScheduledStep, query_starts: Int32s, positions: Int32s) -> Int32s:
    """``StepInput.tree_parents``, empty where no draft branches; ``positions`` are put right."""
    trees = [
        (int(query_starts[i]), each)
        for i, each in enumerate(step.sequences)
        if each.draft is not None and each.draft.parents is not None
    ]
    if not trees:
        return positions[:0]
    within = np.diff(query_starts)
    parents = np.arange(len(positions), dtype=np.int32) - np.repeat(query_starts[:-1] + 1, within)
    for first, each in trees:
        draft = each.draft
        assert draft is not None
        assert draft.parents is not None
        node = first + each.num_tokens - len(draft)  # the row of the first draft
        known = node - first
        parents[node : node + len(draft)] = np.frombuffer(draft.parents, np.int32) + known
        for row, parent in enumerate(draft.parents, node):
            positions[row] = positions[node + parent] + 1
    return parents


_NO_PAIRS = np.empty((0, 2), np.int32)
_NO_PAIRS.flags.writeable = False


def _pairs(pairs: list[tuple[int, int]]) -> Int32s:
    return np.array(pairs, dtype=np.int32) if pairs else _NO_PAIRS


def _offsets(counts: list[int]) -> Int32s:
    return np.array([0, *accumulate(counts)], dtype=np.int32)
