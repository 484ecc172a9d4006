"""Whole plans run natively: equal to the reference within rounding, to themselves exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray
from support.needs import needs_native
from support.tiny_plans import (
    Chunk,
    dummy_weights,
    make_spec,
    step_of,
    tokens_of,
)

from penstock.backends.cpu import native
from penstock.backends.cpu.bind import bind
from penstock.backends.cpu.executor import CpuExecutor
from penstock.backends.reference.executor import ReferenceExecutor
from penstock.cache.geometry import KvDType
from penstock.interface.executor import Limits
from penstock.interface.step import StepInput
from penstock.interface.weights import WeightSource
from penstock.models.spec import DType, ModelSpec
from penstock.plan.fuse import fuse
from penstock.plan.key_columns import key_columns
from penstock.plan.kv_groups import kv_layers
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.quant.choice import choose
from penstock.weights.measured import MeasuredWeights

VARIANTS = native.runnable()
F32 = NDArray[np.float32]

pytestmark = needs_native

CODED: tuple[KvDType, ...] = ("int8", "fp8", "k8v4", "int4")
LIMITS = Limits(num_blocks=40, max_tokens=96, max_logit_rows=96, max_sequences=8, threads=2)


def make_plan(spec: ModelSpec, dtype: DType, kv_dtype: KvDType | None = None) -> Plan:
    return fuse(lower(spec, dtype, kv_dtype=kv_dtype))


def make_executor(
    spec: ModelSpec,
    dtype: DType,
    isa: str | None = None,
    threads: int = 2,
    kv_dtype: KvDType | None = None,
    scaled: bool = False,
) -> CpuExecutor:
    plan, weights = make_plan(spec, dtype, kv_dtype), dummy_weights(spec, 3, dtype)
    if scaled:
        plan, weights = with_scaled_keys(plan, weights)
    limits = replace(LIMITS, threads=threads)
    return bind(plan, weights, limits, native.load(isa))


def with_scaled_keys(plan: Plan, weights: WeightSource) -> tuple[Plan, WeightSource]:
    """The plan with keys centered and scaled, and its weights with centers and factors at
    random."""
    rng = np.random.default_rng(4)
    plan = replace(plan, key_columns=key_columns(plan.ops, plan.kv_layers))
    drawn = {
        each.name: np.stack(
            [rng.normal(size=each.size // 2), 2.0 ** rng.uniform(-2, 2, each.size // 2)]
        ).astype(np.float32)
        for each in plan.key_columns
    }
    return plan, MeasuredWeights(weights, drawn)


# Three sequences, blocks scattered: prefill in chunks, mixed with decode, copied, and extended.
A, B, C = tokens_of(1, 90), tokens_of(2, 70), tokens_of(3, 8)
A_BLOCKS, B_BLOCKS, C_BLOCKS = [7, 0, 39], [12, 5, 31], [2]


def mixed_steps() -> Iterator[StepInput]:
    yield step_of([Chunk(A, 0, 60, A_BLOCKS), Chunk(C, 0, 5, C_BLOCKS, rows=[1, 2, 4])])
    yield step_of([Chunk(A, 60, 61, A_BLOCKS), Chunk(B, 0, 64, B_BLOCKS, rows=range(64))])
    yield step_of([Chunk(B, 64, 65, B_BLOCKS), Chunk(A, 61, 62, A_BLOCKS), Chunk(C, 5, 6, [2])])
    yield step_of([Chunk(A, 62, 80, A_BLOCKS, rows=[])])
    moved = [20, 0, 21]  # a fork of A: its first and last blocks under new ids
    yield step_of([Chunk(A, 80, 81, moved), Chunk(B, 65, 69, B_BLOCKS)], [(7, 20), (39, 21)])


SPECS = {
    "plain": make_spec(),
    "bias": make_spec(bias=True, tie=False),
    "qk_norm": make_spec(qk_norm=True, dim=32, rope_dim=32),
    "window": make_spec(window=33, heads=(4, 4)),
    "part_rotated": make_spec(rope_dim=8, heads=(8, 1)),
    "gelu": make_spec(activation="gelu"),
    "gelu_tanh": make_spec(activation="gelu_tanh"),
}


@pytest.mark.thinned(5)
@pytest.mark.parametrize("isa", VARIANTS)
@pytest.mark.parametrize("dtype", get_args(DType))
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_logits_agree_with_the_reference(spec: ModelSpec, dtype: DType, isa: str) -> None:
    executor = make_executor(spec, dtype, isa)
    reference = ReferenceExecutor(make_plan(spec, dtype), dummy_weights(spec, 3, dtype), LIMITS)
    # bfloat16 rounds activations at the same places on both sides; what differs by an ulp before
    # rounding may differ by one of bfloat16 after it, 2^-8 relative.
    tolerance = {"float32": 3e-5, "float16": 3e-3, "bfloat16": 6e-2}[dtype]
    for step in mixed_steps():
        expected, got = reference.run(step), executor.run(step)
        assert got.logits.shape == expected.logits.shape == (len(step.logit_rows), 211)
        assert got.logits.dtype == np.float32
        np.testing.assert_allclose(got.logits, expected.logits, rtol=0, atol=tolerance)
        np.testing.assert_array_equal(got.argmax, got.logits.argmax(axis=1))
    executor.close()


@pytest.mark.parametrize("isa", VARIANTS)
@pytest.mark.parametrize("dtype", get_args(DType))
def test_hidden_states_agree_with_the_reference_and_change_no_logits(
    dtype: DType, isa: str
) -> None:
    spec = SPECS["qk_norm"]
    executor = make_executor(spec, dtype, isa)
    reference = ReferenceExecutor(make_plan(spec, dtype), dummy_weights(spec, 3, dtype), LIMITS)
    everything = Chunk(B, 0, 64, B_BLOCKS, rows=[], hidden=range(64))
    few = Chunk(C, 0, 5, C_BLOCKS, rows=[1, 4], hidden=[0, 3])
    tolerance = {"float32": 3e-5, "float16": 3e-3, "bfloat16": 6e-2}[dtype]
    for chunks in ([everything, few], [everything], [few, replace(everything, hidden=[63])]):
        step = step_of(chunks)
        expected, got = reference.run(step).hidden, executor.run(step).hidden
        assert got is not None
        assert got.shape == (len(step.logit_rows) + len(step.hidden_rows), spec.hidden_size)
        np.testing.assert_allclose(got.astype(np.float32), expected, rtol=0, atol=tolerance)
    mixed = executor.run(step_of([everything, few])).logits.copy()
    alone = executor.run(step_of([replace(few, hidden=[])])).logits
    np.testing.assert_array_equal(alone, mixed)
    executor.close()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("isa", VARIANTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("spec", [SPECS["bias"], SPECS["qk_norm"]], ids=["bias", "qk_norm"])
def test_quantized_logits_agree_with_the_reference(
    spec: ModelSpec, name: Any, dtype: DType, isa: str
) -> None:
    """A value on the border between two codes may go either way, and is then 1/127 of its group's
    largest apart in what follows. In float32 that is rare, and the steps
    without it, of which int8 has some here, agree to rounding."""
    weights, schemes = dummy_weights(spec, 3, dtype), choose(name, None, True)
    plan = fuse(lower(spec, dtype, quantization=schemes))
    executor = bind(plan, weights, LIMITS, native.load(isa))
    reference = ReferenceExecutor(plan, weights, LIMITS)
    exact = ReferenceExecutor(make_plan(spec, dtype), weights, LIMITS)
    largest = []
    for step in mixed_steps():
        expected, got = reference.run(step).logits, executor.run(step).logits
        rounding = np.abs(exact.run(step).logits - expected)
        if len(got):
            largest.append(np.abs(got - expected).max())
            assert largest[-1] < (0.1 if dtype == "float32" else 0.25)
            assert np.abs(got - expected).mean() < (0.01 if dtype == "float32" else 0.03)
            assert rounding.mean() > 0.015
    if (name, dtype) == ("int8", "float32"):
        assert min(largest) < 1e-5
    executor.close()


@pytest.mark.thinned(5)
@pytest.mark.parametrize("isa", VARIANTS)
@pytest.mark.parametrize("dtype", get_args(DType))
@pytest.mark.parametrize(
    ("name", "group", "zero_points"),
    [("int8", None, False), ("int4", None, False), ("int4", 32, True), ("int8", 0, True)],
)
def test_logits_of_quantized_weights_alone_agree_with_the_reference(
    name: Any, group: int | None, zero_points: bool, dtype: DType, isa: str
) -> None:
    """Nothing is rounded to codes on the way, so only sums differ, and what is then rounded to
    activations and the cache."""
    most, mean = {"float32": (1e-4, 1e-5), "float16": (5e-3, 5e-4), "bfloat16": (0.25, 0.03)}[dtype]
    spec = SPECS["bias"]
    schemes = choose(name, group, True, zero_points=zero_points, activations=False)
    weights = dummy_weights(spec, 3, dtype)
    plan = fuse(lower(spec, dtype, quantization=schemes))
    executor = bind(plan, weights, LIMITS, native.load(isa))
    reference = ReferenceExecutor(plan, weights, LIMITS)
    exact = ReferenceExecutor(make_plan(spec, dtype), weights, LIMITS)
    for step in mixed_steps():
        expected, got = reference.run(step).logits, executor.run(step).logits
        rounding = np.abs(exact.run(step).logits - expected)
        if len(got):
            assert np.abs(got - expected).max() < most
            assert np.abs(got - expected).mean() < mean
            assert rounding.mean() > 0.005
    executor.close()


@pytest.mark.thinned(11)
@pytest.mark.parametrize("isa", VARIANTS)
@pytest.mark.parametrize("dtype", get_args(DType))
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
@pytest.mark.parametrize(
    ("kv_dtype", "scaled"), [*((each, False) for each in CODED), ("int4", True)]
)
def test_logits_with_a_cache_of_codes_agree_with_the_reference(
    spec: ModelSpec, dtype: DType, kv_dtype: KvDType, scaled: bool, isa: str
) -> None:
    """A key or value on the border of two codes may go either way, as with quantized weights."""
    executor = make_executor(spec, dtype, isa, kv_dtype=kv_dtype, scaled=scaled)
    plan, weights = make_plan(spec, dtype, kv_dtype), dummy_weights(spec, 3, dtype)
    if scaled:
        plan, weights = with_scaled_keys(plan, weights)
    reference = ReferenceExecutor(plan, weights, LIMITS)
    exact = ReferenceExecutor(make_plan(spec, dtype, "float32"), weights, LIMITS)
    largest = 6e-2 if dtype == "bfloat16" else 1.5e-2
    largest *= {"int8": 1, "fp8": 127 / 16}.get(kv_dtype, 127 / 7)
    for step in mixed_steps():
        expected, got = reference.run(step).logits, executor.run(step).logits
        rounding = np.abs(exact.run(step).logits - expected)
        if len(got):
            error = np.abs(got - expected)
            assert error.max() < largest
            few = rounding.mean() / 4
            assert error.mean() < (max(1e-2, few) if dtype == "bfloat16" else few)
            assert rounding.mean() > 3e-3
    executor.close()


@pytest.mark.parametrize("kv_dtype", get_args(KvDType))
@pytest.mark.parametrize("dim", [16, 48])
def test_a_cache_takes_the_bytes_that_the_budget_counts(dim: int, kv_dtype: KvDType) -> None:
    spec = make_spec(dim=dim)
    executor = make_executor(spec, "bfloat16", kv_dtype=kv_dtype)
    taken = sum(executor._native.kv_copy(i).size for i in range(len(spec.layers)))
    assert taken == LIMITS.num_blocks * sum(x.block_bytes(kv_dtype) for x in kv_layers(spec.layers))
    executor.close()


@pytest.mark.parametrize("isa", VARIANTS)
@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [("float32", "bfloat16"), ("float32", "float16"), ("bfloat16", "float32")],
)
def test_the_cache_may_have_a_float_type_of_its_own(
    dtype: DType, kv_dtype: KvDType, isa: str
) -> None:
    spec = SPECS["qk_norm"]
    executor = make_executor(spec, dtype, isa, kv_dtype=kv_dtype)
    plan, weights = make_plan(spec, dtype, kv_dtype), dummy_weights(spec, 3, dtype)
    reference = ReferenceExecutor(plan, weights, LIMITS)
    # A cache in bfloat16 has its queries and softmax weights rounded to it as well.
    tolerance = 6e-2 if "bfloat16" in (dtype, kv_dtype) else 3e-3
    for step in mixed_steps():
        expected, got = reference.run(step).logits, executor.run(step).logits
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)
    executor.close()


def last_logits(executor: CpuExecutor, chunks: Sequence[Chunk]) -> F32:
    result = executor.run(step_of(chunks))
    return result.logits[-1].copy()


@pytest.mark.thinned(7)
@pytest.mark.parametrize("isa", VARIANTS)
@pytest.mark.parametrize(
    ("kv_dtype", "scaled"), [*((each, False) for each in (None, *CODED)), ("int4", True)]
)
@pytest.mark.parametrize("dtype", get_args(DType))
def test_a_row_is_bitwise_its_own(
    dtype: DType, kv_dtype: KvDType | None, scaled: bool, isa: str
) -> None:
    """Whatever the chunks, the batch, the blocks and the threads, the same bits come out."""
    spec = SPECS["bias"]
    outcomes = []
    for threads in (1, 2, 5):
        executor = make_executor(spec, dtype, isa, threads, kv_dtype, scaled)
        whole = last_logits(executor, [Chunk(A, 0, 90, A_BLOCKS)])
        outcomes.append(whole)
        for cut in (1, 31, 32, 57, 89):
            last_logits(executor, [Chunk(A, 0, cut, [1, 3, 4])])
            outcomes.append(last_logits(executor, [Chunk(A, cut, 90, [1, 3, 4])]))
        for end in range(70, 91):  # token by token, in company
            start = 0 if end == 70 else end - 1
            others = [Chunk(B, 0, 5, B_BLOCKS), Chunk(C, 0, 7, C_BLOCKS)]
            got = last_logits(executor, [*others, Chunk(A, start, end, [9, 8, 6])])
        outcomes.append(got)
        executor.close()
    assert len({row.tobytes() for row in outcomes}) == 1


@pytest.mark.parametrize("isa", VARIANTS)
def test_many_threads_on_few_cores_do_not_change_or_hang(isa: str) -> None:
    spec = SPECS["plain"]
    rows = set()
    for threads in (1, 16):
        executor = make_executor(spec, "bfloat16", isa, threads)
        last_logits(executor, [Chunk(A, 0, 60, A_BLOCKS)])
        for end in range(61, 91):
            row = last_logits(executor, [Chunk(A, end - 1, end, A_BLOCKS)])
        rows.add(row.tobytes())
        executor.close()
    assert len(rows) == 1


@pytest.mark.parametrize("kv_dtype", ["float32", *CODED])
def test_block_copies_run_in_order_and_first(kv_dtype: KvDType) -> None:
    executor = make_executor(SPECS["plain"], "float32", kv_dtype=kv_dtype)
    plain = last_logits(executor, [Chunk(C, 0, 8, [4])])
    executor.run(step_of([Chunk(C, 0, 7, [4])]))
    got = executor.run(step_of([Chunk(C, 7, 8, [6])], [(4, 5), (5, 6)]))
    np.testing.assert_array_equal(got.logits[-1], plain)
    executor.close()


def test_profile_names_every_op_and_computes_the_same() -> None:
    executor = make_executor(SPECS["plain"], "float32")
    step = step_of([Chunk(C, 0, 8, [1])])
    expected = executor.run(step).logits.copy()
    result, times = executor.profile(step)
    np.testing.assert_array_equal(result.logits, expected)
    plan = make_plan(SPECS["plain"], "float32")
    assert executor.op_kinds == [op.kind for op in plan.ops]
    assert len(times) == len(plan.ops)
    assert all(0 <= waiting <= seconds for seconds, waiting, _ in times)
    assert all(apart == 0 for _, _, apart in times), "there are no other ranks"
    np.testing.assert_array_equal(executor.run(step).logits, expected)
    executor.close()


def test_weights_of_another_dtype_are_converted() -> None:
    spec = SPECS["bias"]
    plan = make_plan(spec, "bfloat16")
    step = step_of([Chunk(C, 0, 8, [1])])
    rows = []
    for source in ("float32", "bfloat16"):
        executor = bind(plan, dummy_weights(spec, 3, source), LIMITS)
        rows.append(executor.run(step).logits.copy())
        executor.close()
    # Norms and biases keep the source's precision; matrices are the plan's either way.
    np.testing.assert_allclose(rows[0], rows[1], atol=5e-2)
