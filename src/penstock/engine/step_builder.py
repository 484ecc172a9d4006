"""Turns a scheduled step into the arrays that an executor reads."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from penstock.engine.scheduled import ScheduledStep
from penstock.engine.step import BLOCK_SIZE, Int32s, StepInput


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
    logit_rows, hidden_rows = rows, rows[:0]
    if step.num_logits < num_tokens:
        to_end = query_starts[1:][owner] - rows
        num_logits = np.array([e.num_logits for e in scheduled], dtype=np.int32)
        logit_rows = rows[to_end <= num_logits[owner]]
        if step.num_hidden:
            num_hidden = np.array([e.num_hidden for e in scheduled], dtype=np.int32)
            hidden_rows = rows[to_end <= num_hidden[owner]]
    copies = np.empty((0, 2), np.int32)
    if step.block_copies:
        copies = np.array(step.block_copies, dtype=np.int32)
    slots = blocks[block_starts[:-1][owner] + positions // block_size]
    return StepInput(
        token_ids=np.frombuffer(b"".join(tokens), dtype=np.int32),
        positions=positions,
        slots=slots * block_size + positions % block_size,
        query_starts=query_starts,
        context_lens=context_lens,
        block_starts=block_starts,
        block_ids=blocks,
        logit_rows=logit_rows,
        block_copies=copies,
        hidden_rows=hidden_rows,
    )


def _offsets(counts: list[int]) -> Int32s:
    return np.array([0, *accumulate(counts)], dtype=np.int32)
