"""Turns a scheduled step into the arrays that an executor reads."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from penstock.engine.scheduled import ScheduledStep
from penstock.engine.step import BLOCK_SIZE, StepInput


def build_step_input(step: ScheduledStep, block_size: int = BLOCK_SIZE) -> StepInput:
    """Build the step's arrays, fresh ones every time.

    Per sequence only ``array`` copies are made in Python; positions, slots and rows are computed
    for all tokens at once.
    """
    token_ids, block_ids = array("i"), array("i")
    starts, counts, block_counts, num_logits = array("i"), array("i"), array("i"), array("i")
    for sequence, start, count, logits, _ in step.sequences:
        if count == 1:
            token_ids.append(sequence.token_ids[start])
        else:
            token_ids.extend(sequence.token_ids[start : start + count])
        table = sequence.table.block_ids
        block_ids.extend(table)
        starts.append(start)
        counts.append(count)
        block_counts.append(len(table))
        num_logits.append(logits)
    first, blocks = _int32(starts), _int32(block_ids)
    query_starts, block_starts = _offsets(counts), _offsets(block_counts)
    rows = np.arange(step.num_tokens, dtype=np.int32)
    owner = np.repeat(np.arange(len(counts), dtype=np.int32), counts)  # sequence of each row
    positions = rows + (first - query_starts[:-1])[owner]
    slots = blocks[block_starts[:-1][owner] + positions // block_size]
    slots = slots * block_size + positions % block_size
    return StepInput(
        token_ids=_int32(token_ids),
        positions=positions,
        slots=slots,
        query_starts=query_starts,
        context_lens=first + _int32(counts),
        block_starts=block_starts,
        block_ids=blocks,
        logit_rows=rows[query_starts[1:][owner] - rows <= _int32(num_logits)[owner]],
        block_copies=np.array(step.block_copies, dtype=np.int32).reshape(-1, 2),
    )


def _int32(values: array[int]) -> NDArray[np.int32]:
    return np.frombuffer(values, dtype=np.int32)


def _offsets(counts: array[int]) -> NDArray[np.int32]:
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    return offsets
