"""The logits that a model gives a sequence of forty tokens, whatever its layers keep."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.backends.registry import backend as named
from penstock.cache.geometry import BLOCK_SIZE
from penstock.interface.executor import Limits, run
from penstock.interface.step import KvTables, StepInput
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec
from support.kv_tables import in_groups
from support.state_steps import with_states

TOKENS = np.random.default_rng(2).integers(0, 250, 40).astype(np.int32)
_BLOCKS = -(-len(TOKENS) // BLOCK_SIZE)


def logits(path: Path, backend: str = "reference") -> NDArray[np.float32]:
    """``[40, vocabulary]``, in float32."""
    spec = load_model_spec(path)
    plan = fuse(lower(spec, "float32", max_positions=64))
    weights = open_weights(path, spec, plan.weights, dtype="float32")
    count, groups = len(TOKENS), len(plan.kv_groups)
    limits = Limits(
        max(groups, 1) * _BLOCKS,
        max_tokens=count,
        max_logit_rows=count,
        max_sequences=1,
        threads=1,
        num_states=2 if plan.state_layers else 0,
    )
    executor = named(backend).bind(plan, weights, limits)
    step = in_groups(_step(), groups, _BLOCKS) if groups else _step()
    if plan.state_layers:
        step = with_states(step, [1])
    result: NDArray[np.float32] = run(executor, step).logits.copy()
    executor.close()
    return result


def _step() -> StepInput:
    def int32(values: object) -> NDArray[np.int32]:
        return np.ascontiguousarray(values, dtype=np.int32)

    count = len(TOKENS)
    return StepInput(
        token_ids=TOKENS,
        positions=int32(range(count)),
        groups=(KvTables(int32(range(count)), int32([0, _BLOCKS]), int32(range(_BLOCKS))),),
        query_starts=int32([0, count]),
        context_lens=int32([count]),
        logit_rows=int32(range(count)),
        block_copies=int32(np.zeros((0, 2))),
    )
