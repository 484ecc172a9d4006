"""Every combination of what a layer may be declared to be runs natively, fused and as lowered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.drawn_specs import specs
from support.kv_tables import in_groups
from support.state_steps import with_states
from support.tame_weights import TameWeights
from support.tiny_plans import Chunk, step_of, tokens_of

from penstock.backends.cpu import native
from penstock.backends.cpu.bind import bind
from penstock.backends.reference.executor import ReferenceExecutor
from penstock.interface.executor import Executor, Limits
from penstock.interface.step import StepInput
from penstock.models.spec import DType, ModelSpec
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower

VARIANTS = native.runnable()

pytestmark = pytest.mark.skipif(not VARIANTS, reason="no native module is built")

BLOCKS = 6
LIMITS = Limits(num_blocks=BLOCKS, max_tokens=64, max_logit_rows=64, max_sequences=4, threads=2)
A, B = tokens_of(1, 50), tokens_of(2, 9)


def steps() -> Iterator[StepInput]:
    yield step_of([Chunk(A, 0, 40, [3, 1], rows=range(40)), Chunk(B, 0, 5, [4], rows=[1])])
    yield step_of([Chunk(B, 5, 6, [4]), Chunk(A, 40, 50, [3, 1], [43, 49], hidden=[41])])


def results(executor: Executor, groups: int, states: bool) -> NDArray[np.float32]:
    rows = []
    for step in steps():
        step = with_states(step) if states else step
        rows.append(executor.run(in_groups(step, groups, BLOCKS)).logits.copy())
    executor.close()
    return np.concatenate(rows)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("isa", VARIANTS)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(spec=specs(states=True))
def test_a_drawn_model_agrees_with_the_reference(isa: str, spec: ModelSpec) -> None:
    """And fusion changes no bit of it."""
    primitive, module = lower(spec), native.load(isa)
    weights = TameWeights(primitive)
    groups, states = len(primitive.kv_groups), len(primitive.state_layers) > 0
    limits = replace(LIMITS, num_blocks=groups * BLOCKS, num_states=BLOCKS if states else 0)
    expected = results(ReferenceExecutor(primitive, weights, limits), groups, states)
    plain, fused = (
        results(bind(plan, weights, limits, module), groups, states)
        for plan in (primitive, fuse(primitive))
    )
    size = max(np.abs(expected).max(), 1.0) * (1.0 if spec.logits_softcap is None else 20.0)
    np.testing.assert_allclose(plain, expected, rtol=0, atol=3e-5 * size)
    np.testing.assert_array_equal(fused.view(np.uint32), plain.view(np.uint32))


@pytest.mark.slow
@pytest.mark.parametrize("isa", VARIANTS)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(spec=specs(states=True), dtype=st.sampled_from(["bfloat16", "float16"]))
def test_and_so_it_does_in_two_bytes(isa: str, spec: ModelSpec, dtype: DType) -> None:
    """Roundings may fall otherwise: in the middle, rows are near. Fusion changes no bit here
    either."""
    primitive, module = lower(spec, dtype), native.load(isa)
    weights = TameWeights(primitive)
    groups, states = len(primitive.kv_groups), len(primitive.state_layers) > 0
    limits = replace(LIMITS, num_blocks=groups * BLOCKS, num_states=BLOCKS if states else 0)
    expected = results(ReferenceExecutor(primitive, weights, limits), groups, states)
    plain, fused = (
        results(bind(plan, weights, limits, module), groups, states)
        for plan in (primitive, fuse(primitive))
    )
    size = max(np.abs(expected).max(), 1.0)
    assert np.median(np.abs(plain - expected)) < 2e-2 * size
    np.testing.assert_array_equal(fused.view(np.uint32), plain.view(np.uint32))
