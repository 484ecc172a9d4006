"""What heads that draft need of ops and plans, on the reference backend, beside plain NumPy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.head_plans import DRAFTS, HEADS, HIDDEN, Writer, eagle, eagle3, medusa, with_features
from support.tiny_plans import Chunk, make_spec, step_of, tokens_of

from penstock.backends.reference.executor import ReferenceExecutor
from penstock.interface.executor import Limits
from penstock.interface.step import StepInput, StepResult
from penstock.models.spec import DType
from penstock.plan.explain import explain
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.memory import plan_memory
from penstock.plan.ops import Activate, Add, AddActivated, Features, Join
from penstock.plan.plan import Plan
from penstock.weights.dummy import DummyWeights

LIMITS = Limits(num_blocks=8, max_tokens=64, max_logit_rows=64, max_sequences=8, threads=1)
A, B = tokens_of(1, 50), tokens_of(2, 9)
F32 = NDArray[np.float32]


def run(plan: Plan, *steps: StepInput) -> StepResult:
    """The last step's result."""
    executor = ReferenceExecutor(plan, DummyWeights(plan.weights, 3, plan.weight_dtype), LIMITS)
    for step in steps:
        result = executor.run(step)
    return result


def steps_of(plan: Plan) -> list[StepInput]:
    return [
        with_features(step, plan)
        for step in (
            step_of([Chunk(A, 0, 40, [3, 6], hidden=[2, 30]), Chunk(B, 0, 5, [1], rows=[1, 4])]),
            step_of([Chunk(B, 5, 6, [1]), Chunk(A, 40, 50, [3, 6], rows=range(40, 50))]),
        )
    ]


def test_each_op_beside_numpy() -> None:
    w = Writer("bfloat16")
    a, b = w.features("a", 1, 5), w.features("b", 3, 5)
    wide = w.buffer("wide", 10)
    w.ops += [
        Join((a, b), wide),
        Join((wide,), w.buffer("rounded", 10, "bfloat16")),
        Activate(wide, w.buffer("gelu", 10), "gelu"),
        Activate(wide, w.buffer("few", 10, "bfloat16"), "silu"),
        AddActivated(wide, "gelu", w.buffer("sum", 10), "silu"),
        Add("sum", wide, "sum"),
    ]
    names = ("rounded", "gelu", "few", "sum")
    reported = [w.buffer(f"told_{name}", 10) for name in names]
    w.ops += [Join((name,), out) for name, out in zip(names, reported, strict=True)]
    joined = w.buffer("joined", 40)
    w.ops.append(Join(tuple(reported), joined))
    last = w.select(joined)
    plan = w.plan(w.linear(last, "head", 3, logits=True), last, cached=False)
    step = with_features(step_of([Chunk(A, 0, 30, [0], rows=range(30))]), plan)
    assert step.features.shape == (30, 8)
    hidden = run(plan, step).hidden
    assert hidden is not None
    rounded, gelu, few, total = np.split(hidden, 4, axis=1)
    x = np.concatenate([step.features[:, 1:6], step.features[:, 3:8]], axis=1)
    erf = np.vectorize(math.erf)(x / math.sqrt(2))
    np.testing.assert_array_equal(rounded.view(np.uint32) & 0xFFFF, 0)
    np.testing.assert_allclose(rounded, x, rtol=2**-8)
    np.testing.assert_allclose(gelu, x * 0.5 * (1 + erf), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(few.view(np.uint32) & 0xFFFF, 0)
    np.testing.assert_allclose(few, x / (1 + np.exp(-x)), rtol=2**-8, atol=1e-7)
    np.testing.assert_allclose(total, 2 * x + gelu / (1 + np.exp(-gelu)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", HEADS)
def test_fused_heads_compute_what_primitive_ones_do(name: str, dtype: DType) -> None:
    plan = HEADS[name](dtype)
    fused = fuse(plan)
    tolerance = 1e-5 if dtype == "float32" else 6e-2
    steps = steps_of(plan)
    for count in (1, 2):
        plain, other = run(plan, *steps[:count]), run(fused, *steps[:count])
        assert plain.hidden is not None
        assert other.hidden is not None
        pairs = [(plain.logits, other.logits), (plain.hidden, other.hidden)]
        pairs += zip(plain.more_logits, other.more_logits, strict=True)
        for expected, got in pairs:
            np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


def test_a_head_of_features_alone_beside_numpy() -> None:
    plan = fuse(medusa("float32"))
    assert not plan.kv_layers
    assert plan.feature_size == HIDDEN
    weights = DummyWeights(plan.weights, 3, "float32")
    step = steps_of(plan)[0]
    result = run(plan, step)
    rows = np.concatenate([step.logit_rows, step.hidden_rows])
    for head, got in enumerate((result.logits, *result.more_logits)):
        x = step.features[rows]
        for block in range(2):
            name = f"y{head}_{block}"
            y = x @ weights.get(name).T + weights.get(f"{name}.bias")
            x = x + y / (1 + np.exp(-y))
        expected = (x @ weights.get(f"logits{head}").T)[: len(step.logit_rows)]
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)
    assert len(result.more_logits) == 2
    np.testing.assert_array_equal(result.argmax, result.logits.argmax(axis=1))
    np.testing.assert_array_equal(result.hidden, step.features[rows])


def test_what_follows_the_last_attention_is_reported_as_the_next_feature() -> None:
    """The residual stream itself, in float32 whatever the activations, before any norm."""
    for make in (eagle, eagle3):
        plan = fuse(make("bfloat16"))
        hidden = plan.buffers[plan.hidden]
        assert (hidden.element, hidden.cols) == ("float32", HIDDEN)
        result = run(plan, *steps_of(plan))
        assert result.hidden is not None
        assert (result.hidden.view(np.uint32) & 0xFFFF).any()
    assert result.logits.shape[1] == DRAFTS


def test_fusion_of_heads() -> None:
    def kinds(plan: Plan) -> list[str]:
        return [op.kind for op in fuse(plan).ops]

    block = ["Join", "Linear", "AddActivated"]
    head = [*block, *block, "Join", "Linear"]
    assert kinds(medusa("float32")) == ["Features", "SelectRows", *head * 3, "Argmax"]
    layer = ["Linear", "RopeWrite", "Attention", "SelectRows", "SelectRows"]
    layer += ["Linear", "AddNorm", "Linear", "Linear"]
    assert kinds(eagle("float32")) == [
        *["Embed", "Features", "Join", "Linear", "Join"],
        *[*layer, "Add", "Join", "Linear", "Argmax"],
    ]
    assert kinds(eagle3("float32")) == [
        *["Features", "Features", "Join", "Linear", "AddNorm", "Embed", "AddNorm", "Join"],
        *[*layer, "AddNorm", "Linear", "Argmax"],
    ]


@pytest.mark.parametrize("name", HEADS)
def test_heads_are_explained(name: str) -> None:
    plan = fuse(HEADS[name]("bfloat16"))
    lines = [line.strip() for line in explain(plan, plan_memory(plan, 64, 64)).splitlines()]
    reported = [line for line in lines if " -> " in line]
    assert [line.split()[0] for line in reported] == [op.kind for op in plan.ops]
    for line, op in zip(reported, plan.ops, strict=True):
        reads, writes = line.removeprefix(op.kind).strip().removeprefix("-> ").split("  ")[0], ""
        if op.reads:
            reads, writes = reads.split(" -> ")
            assert reads.split(", ") == [each.removeprefix("layers.0.") for each in op.reads]
        for name in op.writes:
            buffer = plan.buffers[name]
            shape = f"[{buffer.rows},{buffer.cols}]:{buffer.element}"
            assert name.removeprefix("layers.0.") + shape in (writes or reads)


@settings(deadline=None, max_examples=30)
@given(
    name=st.sampled_from(sorted(HEADS)),
    fused=st.booleans(),
    max_tokens=st.integers(1, 300),
    max_logits=st.integers(1, 300),
)
def test_buffers_of_heads_that_live_together_never_share_bytes(
    name: str, fused: bool, max_tokens: int, max_logits: int
) -> None:
    plan = HEADS[name]("bfloat16")
    plan = fuse(plan) if fused else plan
    memory = plan_memory(plan, max_tokens, max_logits)
    lives: dict[str, range] = {}
    for i, op in enumerate(plan.ops):
        for each in (*op.reads, *op.writes):
            lives[each] = range(lives.get(each, range(i, i)).start, i + 1)
    for each in plan.results:
        lives[each] = range(lives[each].start, len(plan.ops) + 1)
    assert set(plan.results) >= {plan.logits, plan.hidden, *plan.more_logits}
    for one, its in lives.items():
        for other, others in lives.items():
            together = its.start < others.stop and others.start < its.stop
            if one != other and together:
                start, begin = memory.offsets[one], memory.offsets[other]
                assert start + memory.sizes[one] <= begin or begin + memory.sizes[other] <= start


def test_features_are_refused_by_cause() -> None:
    plan = fuse(eagle("float32"))
    step = steps_of(plan)[0]
    count = len(step.token_ids)
    for features, message in (
        (step.features[:-1], rf"\[{count - 1}, {HIDDEN}\], .* \[{count}, {HIDDEN}\]"),
        (step.features[:, :-1].copy(), rf"\[{count}, {HIDDEN - 1}\]"),
        (np.empty((0, 0), np.float32), r"\[0, 0\]"),
        (step.features.astype(np.float64), "float64"),
        (np.asfortranarray(step.features), "C-contiguous"),
    ):
        with pytest.raises(ValueError, match=message):
            run(plan, replace(step, features=features))
    plain = fuse(lower(make_spec(), "float32"))
    assert plain.feature_size == 0
    with pytest.raises(ValueError, match="the model reads none"):
        run(plain, step)
    run(plain, replace(step, features=np.empty((count, 0), np.float32)))


def test_a_plan_reads_as_many_columns_as_its_widest_copy() -> None:
    assert medusa("float32").feature_size == HIDDEN
    assert eagle3("float32").feature_size == 4 * HIDDEN
    assert [op.first for op in eagle3("float32").ops if isinstance(op, Features)] == [
        0,
        3 * HIDDEN,
    ]
