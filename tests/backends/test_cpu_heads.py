"""Heads that draft run natively: equal to the reference within rounding, to themselves exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.head_plans import HEADS, HIDDEN, Writer, eagle, medusa, with_features
from support.kv_tables import changed
from support.needs import needs_native
from support.tiny_plans import Chunk, dummy_weights, make_spec, step_of, tokens_of
from support.tree_steps import Accepted, tree_step

from penstock.backends.cpu import native
from penstock.backends.cpu.bind import bind
from penstock.backends.cpu.executor import CpuExecutor, _arrays
from penstock.backends.reference.executor import ReferenceExecutor
from penstock.interface.executor import Limits
from penstock.interface.step import StepInput, StepResult
from penstock.models.spec import Activation, DType
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.ops import Activate, Add, AddActivated, Element, Join, SelectRows
from penstock.plan.plan import Plan
from penstock.weights.dummy import DummyWeights

VARIANTS = native.runnable()

pytestmark = needs_native

LIMITS = Limits(num_blocks=20, max_tokens=96, max_logit_rows=96, max_sequences=8, threads=2)
A, B, C = tokens_of(1, 90), tokens_of(2, 70), tokens_of(3, 8)
A_BLOCKS, B_BLOCKS = [7, 0, 19], [12, 5, 11]
TOLERANCE = {"float32": 3e-5, "float16": 3e-3, "bfloat16": 6e-2}


def steps_of(plan: Plan) -> Iterator[StepInput]:
    for chunks in (
        [Chunk(A, 0, 60, A_BLOCKS, hidden=[3, 9]), Chunk(C, 0, 5, [2], rows=[1, 2, 4])],
        [Chunk(A, 60, 61, A_BLOCKS), Chunk(B, 0, 64, B_BLOCKS, rows=range(64))],
        [Chunk(B, 64, 65, B_BLOCKS), Chunk(A, 61, 62, A_BLOCKS), Chunk(C, 5, 6, [2])],
        [Chunk(A, 62, 80, A_BLOCKS, rows=[])],
    ):
        yield with_features(step_of(chunks), plan)


def executor_of(plan: Plan, isa: str | None = None, threads: int = 2) -> CpuExecutor:
    weights = DummyWeights(plan.weights, 3, plan.weight_dtype)
    return bind(plan, weights, replace(LIMITS, threads=threads), native.load(isa))


def arrays(result: StepResult) -> list[NDArray[Any]]:
    assert result.hidden is not None
    return [result.logits, result.hidden.astype(np.float32), *result.more_logits]


@pytest.mark.thinned(5)
@pytest.mark.parametrize("isa", VARIANTS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", HEADS)
def test_heads_agree_with_the_reference(name: str, dtype: DType, isa: str) -> None:
    plan = fuse(HEADS[name](dtype))
    executor = executor_of(plan, isa)
    reference = ReferenceExecutor(plan, DummyWeights(plan.weights, 3, dtype), LIMITS)
    for step in steps_of(plan):
        result = executor.run(step)
        for got, expected in zip(arrays(result), arrays(reference.run(step)), strict=True):
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE[dtype])
        np.testing.assert_array_equal(result.argmax, result.logits.argmax(axis=1))
        assert result.taps is None
    executor.close()


@pytest.mark.thinned(5)
@pytest.mark.parametrize("isa", VARIANTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", HEADS)
def test_a_row_of_a_head_is_bitwise_its_own(name: str, dtype: DType, isa: str) -> None:
    """Whatever the chunks, the company and the threads, the same bits come out."""
    plan = fuse(HEADS[name](dtype))
    outcomes = set()
    for threads in (1, 2, 5):
        executor = executor_of(plan, isa, threads)
        for cut, others in ((0, []), (31, []), (57, [Chunk(B, 0, 30, B_BLOCKS)])):
            if cut:
                executor.run(with_features(step_of([Chunk(A, 0, cut, A_BLOCKS)]), plan))
            step = step_of([*others, Chunk(A, cut, 62, A_BLOCKS)])
            result = executor.run(with_features(step, plan))
            outcomes.add(b"".join(each[-1].tobytes() for each in arrays(result)))
        executor.close()
    assert len(outcomes) == 1


@pytest.mark.parametrize("isa", VARIANTS)
@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_a_tree_of_a_head_is_bitwise_its_paths(name: str, isa: str) -> None:
    """What a head tells of a draft depends on the drafts before it, and on no others."""
    plan = fuse(HEADS[name]("bfloat16"))
    trees, plain = executor_of(plan, isa), executor_of(plan, isa, 1)
    known = Accepted(A[:45], list(A_BLOCKS))
    for executor in (trees, plain):
        executor.run(with_features(step_of([Chunk(A, 0, 45, A_BLOCKS)]), plan))
    tree = known.branches(tokens_of(9, 6), [-1, 0, 0, 1, 2, 2])
    others = [Chunk(B, 0, 20, B_BLOCKS)]
    together = arrays(trees.run(with_features(tree_step([*others, tree]), plan)))
    for path in ([0, 1, 3], [0, 2, 4], [0, 2, 5]):
        tokens = np.concatenate([A[:45], tree.tokens[45:][path]])
        step = step_of([Chunk(tokens, 45, 48, A_BLOCKS, rows=[45, 46, 47])])
        alone = arrays(plain.run(with_features(step, plan)))
        for whole, line in zip(together, alone, strict=True):
            assert whole[1:][path].tobytes() == line.tobytes()
    trees.close()
    plain.close()


@settings(deadline=None, max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    rounded=st.lists(st.booleans(), min_size=4, max_size=4),
    out=st.sampled_from(["float32", "bfloat16"]),
    rows=st.integers(1, 40),
    activation=st.sampled_from(["silu", "gelu", "gelu_tanh", "relu", "relu2"]),
    seed=st.integers(0, 2**16),
)
def test_ops_of_any_shape_agree_with_the_reference(
    sizes: list[int],
    rounded: list[bool],
    out: Element,
    rows: int,
    activation: Activation,
    seed: int,
) -> None:
    """Copies and sums are exact, and so is rounding; activations differ in the last places."""
    w, first, xs = Writer("bfloat16"), 0, []
    for i, (size, small) in enumerate(zip(sizes, rounded, strict=False)):
        x = w.features(f"x{i}", first, size)
        first += size // 2 + 1  # columns that overlap
        if small:
            w.ops.append(Join((x,), w.buffer(f"small{i}", size, "bfloat16")))
            x = f"small{i}"
        xs.append(x)
    cols = sum(sizes)
    w.ops += [
        Join(tuple(xs), w.buffer("joined", cols)),
        Join(tuple(xs), w.buffer("other", cols, out)),
        Join(("other",), w.buffer("other_wide", cols)),
        Activate("joined", w.buffer("active", cols, out), activation),
        Join(("active",), w.buffer("active_wide", cols)),
        Add("joined", "other_wide", "other_wide"),
        AddActivated("other_wide", "joined", w.buffer("sum", cols), activation),
    ]
    whole = w.buffer("last", 4 * cols, rows=w.buffers[w.select("joined")].rows)
    w.ops.pop()
    for i, name in enumerate(("joined", "other_wide", "active_wide", "sum")):
        w.ops.append(SelectRows(name, whole, i * cols))
    plan = w.plan(w.linear(whole, "head", 3, logits=True), whole, cached=False)
    step = step_of([Chunk(A, 0, rows, [0, 1], rows=range(rows))])
    features = np.random.default_rng(seed).standard_normal((rows, plan.feature_size), np.float32)
    step = replace(step, features=features, groups=())
    executor = executor_of(plan)
    reference = ReferenceExecutor(plan, DummyWeights(plan.weights, 3, "bfloat16"), LIMITS)
    got, expected = executor.run(step).hidden, reference.run(step).hidden
    assert got is not None
    assert expected is not None
    np.testing.assert_array_equal(got[:, : 2 * cols], expected[:, : 2 * cols])
    atol = 1e-5 if out == "float32" else 2**-7
    np.testing.assert_allclose(got[:, 2 * cols :], expected[:, 2 * cols :], rtol=2**-7, atol=atol)
    np.testing.assert_allclose(got[:, 3 * cols :], expected[:, 3 * cols :], rtol=0, atol=1e-5)
    executor.close()


def test_a_plan_without_a_cache_has_no_tables() -> None:
    plan = fuse(medusa("float32"))
    executor = bind(
        plan, DummyWeights(plan.weights, 3, "float32"), replace(LIMITS, num_blocks=0), native.load()
    )
    step = next(steps_of(plan))
    for got, expected in zip(
        arrays(executor.run(step)), arrays(executor_of(plan).run(step)), strict=True
    ):
        np.testing.assert_array_equal(got, expected)
    tables = next(steps_of(fuse(eagle("float32")))).groups
    with pytest.raises(ValueError, match="tables of 1 groups of layers where 0 are cached"):
        executor.run(replace(step, groups=tables))
    with pytest.raises(ValueError, match="no such KV layer"):
        executor._native.kv_copy(0)
    executor.close()


def test_a_plan_with_a_cache_still_does() -> None:
    plan = fuse(eagle("float32"))
    executor = executor_of(plan)
    step = next(steps_of(plan))
    with pytest.raises(ValueError, match="slot -1"):
        executor.run(changed(step, slots=np.full_like(step.groups[0].slots, -1)))
    executor.close()


def test_features_are_refused_before_anything_is_written() -> None:
    plan = fuse(eagle("float32"))
    executor = executor_of(plan)
    step = next(steps_of(plan))
    before = executor.run(step).logits.copy()
    with pytest.raises(ValueError, match=rf"reads \[65, {HIDDEN}\]"):
        executor.run(replace(step, features=step.features[1:]))
    for features, message in (
        (step.features[1:], "features of 64 tokens for 65"),
        (step.features[:, 1:].copy(), f"{HIDDEN - 1} columns where {HIDDEN} are read"),
        (None, f"0 columns where {HIDDEN}"),
    ):
        with pytest.raises(ValueError, match=message):
            executor._native.run(*_arrays(step), features=features)
    np.testing.assert_array_equal(executor.run(step).logits, before)
    executor.close()
    plain = bind(
        fuse(lower(make_spec(), "float32")),
        dummy_weights(make_spec(), 3, "float32"),
        LIMITS,
        native.load(),
    )
    with pytest.raises(ValueError, match="the model reads none"):
        plain.run(step)
    plain.close()


def test_profile_names_the_ops_of_heads() -> None:
    for make in HEADS.values():
        plan = fuse(make("float32"))
        executor = executor_of(plan)
        _, times = executor.profile(next(steps_of(plan)))
        assert executor.op_kinds == [op.kind for op in plan.ops]
        assert len(times) == len(plan.ops)
        executor.close()
