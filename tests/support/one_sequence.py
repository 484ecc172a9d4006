"""Checkpoints that are run over the tokens of one sequence, whatever their layers keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.backends.registry import backend as named
from penstock.cache.geometry import BLOCK_SIZE, KvDType
from penstock.interface.executor import Limits
from penstock.interface.executor import run as run_step
from penstock.interface.step import KvTables, StepInput, StepResult
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec
from support.kv_tables import in_groups
from support.state_steps import with_states

Run = Callable[[Sequence[int], int], StepResult]
"""Runs a step over tokens of the one sequence, from a position on."""


@contextmanager
def bound(
    path: Path, backend: str, context: int, chunk: int, kv_dtype: KvDType | None = None
) -> Iterator[Run]:
    """A checkpoint in float32 with a cache of ``context`` tokens; a step has at most ``chunk``."""
    spec = load_model_spec(path)
    plan = fuse(lower(spec, "float32", context, kv_dtype=kv_dtype))
    weights = open_weights(path, spec, plan.weights, dtype="float32")
    groups, blocks = len(plan.kv_groups), -(-context // BLOCK_SIZE)
    limits = Limits(
        max(groups, 1) * blocks,
        max_tokens=chunk,
        max_logit_rows=chunk,
        max_sequences=1,
        threads=1,
        num_states=2 if plan.state_layers else 0,
    )
    executor = named(backend).bind(plan, weights, limits)

    def run(tokens: Sequence[int], start: int) -> StepResult:
        step = _step(tokens, start, blocks)
        if plan.state_layers:
            step = with_states(step, [1])
        return run_step(executor, in_groups(step, groups, blocks))

    yield run
    executor.close()


def _step(tokens: Sequence[int], start: int, blocks: int) -> StepInput:
    """A step over ``tokens`` of one sequence from position ``start``, with logits for each.

    The cache's blocks are used last to first, so that nothing works by lying in order.
    """
    count = len(tokens)
    positions = np.arange(start, start + count)
    ids = np.arange(blocks)[::-1]
    used = -(-(start + count) // BLOCK_SIZE)
    slots = ids[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    return StepInput(
        token_ids=_int32(tokens),
        positions=_int32(positions),
        groups=(KvTables(_int32(slots), _int32([0, used]), _int32(ids[:used])),),
        query_starts=_int32([0, count]),
        context_lens=_int32([start + count]),
        logit_rows=_int32(range(count)),
        block_copies=_int32(np.zeros((0, 2))),
    )


def _int32(values: object) -> NDArray[np.int32]:
    return np.ascontiguousarray(values, dtype=np.int32)
