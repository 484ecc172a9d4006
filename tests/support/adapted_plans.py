"""Plans with room for adapters, steps that use some, and what holds of every executor of them.

plan, weights = adapted("float32")
made, reference = bind(plan, weights, LIMITS), ReferenceExecutor(plan, weights, LIMITS)
fill_slots(plan, made, reference)
check_against(reference, made, close=1e-4)
check_bits(made)
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.interface.adapters import Adapter, AdapterSlots, LowRank
from penstock.interface.executor import Executor, Limits, run
from penstock.interface.plan_weights import PlanWeight
from penstock.interface.sources import Stored
from penstock.interface.step import StepInput
from penstock.models.spec import DType, ModelSpec
from penstock.plan.adapt import adapt, adapted_matrices
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.ops import AdapterDown, AdapterUp
from penstock.plan.plan import Plan
from penstock.quant.choice import choose
from penstock.quant.scheme import Quantization
from penstock.weights.dummy import DummyWeights
from support.tiny_plans import Chunk, broken, dummy_weights, make_spec, step_of, tokens_of

SPEC = make_spec(bias=True, tie=False)
SLOTS = AdapterSlots(count=3, rank=20)
LIMITS = Limits(
    12, max_tokens=96, max_logit_rows=24, max_sequences=8, threads=2, max_hidden_rows=96
)
TOKENS = tokens_of(1, 60)
STEP = step_of(
    [
        Chunk(TOKENS, 0, 20, [1]),
        Chunk(TOKENS, 0, 33, [2, 3], hidden=(4, 30)),
        Chunk(TOKENS, 0, 1, [4]),
        Chunk(TOKENS, 0, 7, [5], rows=(2, 6), hidden=(0,)),
        Chunk(TOKENS, 0, 20, [6]),
    ]
)
USED = [1, -1, 2, 1, 0]


def adapted(
    dtype: DType,
    quantization: Quantization | None = None,
    spec: ModelSpec = SPEC,
    slots: AdapterSlots = SLOTS,
) -> tuple[Plan, DummyWeights]:
    """A plan with room for adapters, whose products read float16 where its weights are that, and
    its weights."""
    schemes = quantization or choose("none", None, True)
    lowered = lower(spec, dtype, quantization=schemes, half=dtype == "float16")
    return adapt(fuse(lowered), slots), dummy_weights(spec, 3, dtype)


def with_factors(plan: Plan) -> tuple[Plan, DummyWeights]:
    """Return ``plan`` with random factors wherever a balanced one may have some, and weights."""
    weights, changed = dict(plan.weights), []
    for op in plan.ops:
        if isinstance(op, AdapterDown):
            op = replace(op, factors=f"{op.low}.columns")
            weights[f"{op.low}.columns"] = PlanWeight(Stored(f"{op.low}.columns", (op.k,)))
        elif isinstance(op, AdapterUp) and len(op.parts) == 1:
            op = replace(op, factors=f"{op.out}.rows")
            weights[f"{op.out}.rows"] = PlanWeight(Stored(f"{op.out}.rows", (op.parts[0].n,)))
        changed.append(op)
    made = replace(plan, ops=tuple(changed), weights=weights)
    return made, DummyWeights(weights, 3, plan.weight_dtype)


def drawn(plan: Plan, seed: int, rank: int, targets: str = "") -> Adapter:
    """A random adapter of the matrices whose names contain ``targets``."""
    rng = np.random.default_rng(seed)
    matrices = {}
    for name, (n, k) in adapted_matrices(plan).items():
        if targets in name:
            down = rng.standard_normal((rank, k)).astype(np.float32) * 0.2
            up = rng.standard_normal((n, rank)).astype(np.float32) * 0.2
            matrices[name] = LowRank(down, up, 0.5)
    return Adapter(f"{seed}", rank, matrices)


def fill_slots(plan: Plan, *executors: Executor) -> None:
    """Write an adapter into each of ``SLOTS``, of several ranks; the second has some of the
    matrices alone."""
    adapters = (drawn(plan, 1, 20), drawn(plan, 2, 5, "layers.1"), drawn(plan, 3, 17))
    for executor in executors:
        assert executor.adapters is not None
        executor.adapters.write(2, adapters[0])  # what a slot had before does not matter
        for slot, adapter in enumerate(adapters):
            executor.adapters.write(slot, adapter)


def outputs(executor: Executor, step: StepInput) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The logits and the hidden states of a step."""
    result = run(executor, step)
    assert result.hidden is not None
    return result.logits.copy(), result.hidden.astype(np.float32)


def check_against(reference: Executor, made: Executor, close: float) -> None:
    """A step that mixes adapters comes to what the reference makes of it, and every row that has an
    adapter is changed."""
    step = broken(STEP, adapters=USED)
    ours, theirs = outputs(made, step), outputs(reference, step)
    for mine, its in zip(ours, theirs, strict=True):
        assert np.abs(mine - its).max() <= close * max(1.0, np.abs(its).max())
    plain = outputs(made, STEP)
    changed = np.abs(plain[0] - ours[0]).max(axis=1) > 0.01
    assert changed.tolist() == [True, False, True, True, True, True]


def check_bits(made: Executor) -> None:
    """A row has its bits beside any others, and one without an adapter those that it has in a step
    of none."""
    logits, hidden = outputs(made, broken(STEP, adapters=USED))
    others = outputs(made, broken(STEP, adapters=[0, -1, 0, 1, 2]))
    plain = outputs(made, STEP)
    assert np.array_equal(logits[1], plain[0][1])
    assert np.array_equal(logits[3:5], others[0][3:5])
    assert np.array_equal(hidden[3:5], others[1][3:5])
    alone = outputs(made, broken(step_of([Chunk(TOKENS, 0, 20, [7])]), adapters=[0]))
    assert np.array_equal(logits[5], alone[0][0])


def check_refusals(executor: Executor) -> None:
    """Steps whose adapters are too few, or in no slot, are refused."""
    for wrong in ([0, 1], [0, 0, 0, 0, 3], [0, 0, 0, -2, 0]):
        with pytest.raises(ValueError, match=r"adapter|length"):
            run(executor, broken(STEP, adapters=wrong))
