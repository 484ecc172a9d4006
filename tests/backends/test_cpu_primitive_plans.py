"""Plans run natively as they are lowered: fusion, of all or of some, changes nothing but time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.needs import needs_native
from support.rare_plans import PlanWeights, Rare, fuse_apart, ops_of_dense_models, rare
from support.tiny_plans import Chunk, make_spec, step_of, tokens_of

from penstock.backends.cpu import native
from penstock.backends.cpu.append import APPENDERS
from penstock.backends.cpu.bind import bind
from penstock.backends.cpu.executor import CpuExecutor
from penstock.backends.reference.executor import ReferenceExecutor
from penstock.cache.geometry import KvDType
from penstock.errors import ConfigError
from penstock.interface.executor import Limits
from penstock.interface.step import StepInput
from penstock.models.spec import DType
from penstock.plan import ops
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.plan import Plan

VARIANTS = native.runnable()

pytestmark = needs_native

LIMITS = Limits(num_blocks=24, max_tokens=96, max_logit_rows=96, max_sequences=8, threads=2)
TOLERANCE = {"float32": 3e-5, "float16": 3e-3, "bfloat16": 6e-2}
TYPES: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}

A, B, C = tokens_of(1, 90), tokens_of(2, 70), tokens_of(3, 8)
A_BLOCKS, B_BLOCKS, C_BLOCKS = [7, 0, 19], [12, 5, 11], [2]

SPECS = st.builds(
    lambda dim, part, **options: make_spec(dim=dim, rope_dim=dim // part // 2 * 2, **options),
    dim=st.sampled_from([8, 16, 32, 50]),
    part=st.sampled_from([1, 2, 4]),
    qk_norm=st.booleans(),
    bias=st.booleans(),
    tie=st.booleans(),
    window=st.sampled_from([None, None, 1, 33]),
    activation=st.sampled_from(["silu", "gelu", "gelu_tanh", "relu", "relu2"]),
    heads=st.sampled_from([(6, 2), (4, 4), (8, 1)]),
)
RARE = st.builds(
    Rare,
    layer_norm=st.booleans(),
    embedding_factor=st.sampled_from([None, 3.5]),
    logit_cap=st.sampled_from([None, 1.5]),
    interleaved=st.booleans(),
    softcap=st.sampled_from([None, 2.0]),
    slopes=st.booleans(),
    sinks=st.booleans(),
)
KV: st.SearchStrategy[KvDType | None] = st.sampled_from([None, None, "int8", "float32"])


@st.composite
def primitive_plans(draw: st.DrawFn) -> Plan:
    dtype: DType = draw(st.sampled_from(["float32", "float16", "bfloat16"]))
    plan = lower(draw(SPECS), dtype, kv_dtype=draw(KV))
    return rare(plan, draw(RARE))


def steps() -> Iterator[StepInput]:
    yield step_of([Chunk(A, 0, 60, A_BLOCKS), Chunk(C, 0, 5, C_BLOCKS, rows=[1, 2, 4])])
    yield step_of([Chunk(A, 60, 61, A_BLOCKS), Chunk(B, 0, 64, B_BLOCKS, rows=range(64))])
    yield step_of([Chunk(B, 64, 65, B_BLOCKS), Chunk(A, 61, 62, A_BLOCKS), Chunk(C, 5, 6, [2])])
    yield step_of([Chunk(A, 62, 80, A_BLOCKS, rows=[], hidden=[70, 79])])


def bound(plan: Plan, isa: str, threads: int = 2) -> CpuExecutor:
    weights = PlanWeights(plan, TYPES[plan.weight_dtype])
    return bind(plan, weights, replace(LIMITS, threads=threads), native.load(isa))


def results(plan: Plan, isa: str) -> list[NDArray[np.float32]]:
    executor = bound(plan, isa)
    got = []
    for step in steps():
        result = executor.run(step)
        assert result.hidden is not None
        got += [result.logits.copy(), result.hidden.astype(np.float32)]
        np.testing.assert_array_equal(result.argmax, result.logits.argmax(axis=1))
    executor.close()
    return got


def several(examples: int) -> Any:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=examples, deadline=None, suppress_health_check=slow)


def test_every_op_of_a_plan_can_be_appended() -> None:
    assert set(APPENDERS) >= ops_of_dense_models()


@dataclass(frozen=True)
class _Unheard(ops.Op):
    """An op that no backend knows."""


def test_an_op_without_a_kernel_is_refused_by_name() -> None:
    plan = lower(make_spec())
    plan = replace(plan, ops=(*plan.ops, _Unheard()))
    weights = PlanWeights(plan, TYPES[plan.weight_dtype])
    with pytest.raises(ConfigError, match="op _Unheard has no native kernel"):
        bind(plan, weights, LIMITS)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("isa", VARIANTS)
@given(plan=primitive_plans())
@several(25)
def test_a_primitive_plan_agrees_with_the_reference(isa: str, plan: Plan) -> None:
    weights = PlanWeights(plan, TYPES[plan.weight_dtype])
    reference = ReferenceExecutor(plan, weights, LIMITS)
    # A key or value on the border of two codes of an int8 cache may go either way.
    most = max(TOLERANCE[plan.weight_dtype], 3e-2 if plan.kv_dtype == "int8" else 0.0)
    executor = bound(plan, isa)
    assert executor.op_kinds == [op.kind for op in plan.ops]
    for step in steps():
        expected, got = reference.run(step), executor.run(step)
        assert got.hidden is not None
        np.testing.assert_allclose(got.logits, expected.logits, rtol=0, atol=most)
        wide = got.hidden.astype(np.float32)
        np.testing.assert_allclose(wide, expected.hidden, rtol=0, atol=most)
    executor.close()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("isa", VARIANTS)
@given(plan=primitive_plans(), cuts=st.lists(st.integers(1, 45), max_size=12))
@several(15)
def test_fusion_changes_no_bit(isa: str, plan: Plan, cuts: list[int]) -> None:
    """Whatever is fused, the same bits come out; hidden rows and logits alike."""
    plain = results(plan, isa)
    for other in (fuse(plan), fuse_apart(plan, cuts), fuse_apart(plan, range(1, 100))):
        for a, b in zip(plain, results(other, isa), strict=True):
            np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


def test_cuts_leave_what_they_lie_within_unfused() -> None:
    plan = lower(make_spec(qk_norm=True), "float32")
    assert fuse_apart(plan, []) == fuse(plan)
    unfused = {op.kind for op in fuse_apart(plan, range(1, 100)).ops}
    assert {"Gate", "HeadNorm", "Rope", "KvWrite", "Add"} <= unfused
    assert "RopeWrite" not in unfused


@pytest.mark.parametrize("isa", VARIANTS)
@given(
    plan=primitive_plans(),
    cuts=st.lists(st.integers(1, 45), max_size=4),
    ends=st.lists(st.integers(1, 89), max_size=3, unique=True),
    threads=st.integers(1, 4),
)
@several(15)
def test_a_row_is_bitwise_its_own(
    isa: str, plan: Plan, cuts: list[int], ends: list[int], threads: int
) -> None:
    """Bits are the same at any chunking, in any company and on any number of threads."""
    alone = bound(plan, isa, threads=1)
    whole = alone.run(step_of([Chunk(A, 0, 90, A_BLOCKS)])).logits[-1].copy()
    alone.close()
    executor = bound(fuse_apart(plan, cuts), isa, threads)
    for start, end in zip([0, *sorted(ends)], [*sorted(ends), 90], strict=True):
        others = [Chunk(C, 0, 1 + end % 5, C_BLOCKS)] if end - start < 85 else []
        result = executor.run(step_of([*others, Chunk(A, start, end, [9, 8, 6])]))
    np.testing.assert_array_equal(result.logits[-1].view(np.uint32), whole.view(np.uint32))
    executor.close()
