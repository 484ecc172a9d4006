"""Lowering, fusion and memory planning, checked by running both forms on the reference backend."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.backends.registry import backend
from penstock.cache.geometry import KvDType
from penstock.interface.executor import Limits
from penstock.interface.step import KvTables, StepInput
from penstock.models.spec import (
    Activation,
    AttentionSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    NormSpec,
    QkNormSpec,
    RopeSpec,
)
from penstock.plan import ops
from penstock.plan.explain import explain
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.memory import ALIGNMENT, plan_memory

NORM = NormSpec(eps=1e-5)


def tiny_spec(
    *,
    layers: int = 2,
    qk_norm: bool = False,
    bias: bool = False,
    tie: bool = True,
    window: int | None = None,
    activation: Activation = "silu",
) -> ModelSpec:
    attention = AttentionSpec(
        num_heads=6,
        num_kv_heads=3,
        head_dim=8,
        rope=RopeSpec(theta=10000.0, dim=8),
        scale=8**-0.5,
        window=window,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QkNormSpec(1e-5) if qk_norm else None,
    )
    return ModelSpec(
        architecture="TinyForCausalLM",
        vocab_size=50,
        hidden_size=24,
        layers=(LayerSpec(attention, MlpSpec(40, activation, bias), NORM, NORM),) * layers,
        final_norm=NORM,
        tie_embeddings=tie,
        max_positions=128,
        dtype="float32",
    )


def shapes_of(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    return {name: weight.shape for name, weight in lower(spec).weights.items()}


class RandomWeights:
    def __init__(self, spec: ModelSpec) -> None:
        generator = np.random.default_rng(0)
        self._arrays = {
            name: generator.standard_normal(shape).astype(np.float32) / np.sqrt(shape[-1])
            for name, shape in shapes_of(spec).items()
        }

    def get(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def names(self) -> Iterable[str]:
        return self._arrays


def int32(values: object) -> np.ndarray:
    return np.asarray(values, dtype=np.int32)


def one_sequence(tokens: list[int], start: int, logit_rows: list[int]) -> StepInput:
    """A chunk of one sequence whose blocks are 3, 1, 2 in that order."""
    blocks = int32([3, 1, 2])
    positions = int32(range(start, start + len(tokens)))
    return StepInput(
        token_ids=int32(tokens),
        positions=positions,
        groups=(KvTables(blocks[positions // 32] * 32 + positions % 32, int32([0, 3]), blocks),),
        query_starts=int32([0, len(tokens)]),
        context_lens=int32([start + len(tokens)]),
        logit_rows=int32(logit_rows),
        block_copies=int32(np.zeros((0, 2))),
    )


LIMITS = Limits(num_blocks=4, max_tokens=96, max_logit_rows=96, max_sequences=4, threads=1)


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("tie", "window", "activation", "kv_dtype"),
    [
        (True, None, "silu", None),
        (False, 5, "gelu_tanh", "int8"),
        (False, None, "gelu", "bfloat16"),
    ],
)
def test_fused_plan_computes_what_the_primitive_plan_does(
    qk_norm: bool,
    bias: bool,
    tie: bool,
    window: int | None,
    activation: Activation,
    kv_dtype: KvDType | None,
) -> None:
    spec = tiny_spec(qk_norm=qk_norm, bias=bias, tie=tie, window=window, activation=activation)
    weights = RandomWeights(spec)
    primitive = lower(spec, kv_dtype=kv_dtype)
    plans = (primitive, fuse(primitive))
    executors = [backend("reference").bind(plan, weights, LIMITS) for plan in plans]
    tokens = [int(t) for t in np.random.default_rng(1).integers(0, 50, size=70)]
    for start, stop, rows in ((0, 40, [0, 39]), (40, 69, [28]), (69, 70, [0])):
        step = one_sequence(tokens[start:stop], start, rows)
        plain, fused = (executor.run(step) for executor in executors)
        assert plain.logits.shape == (len(rows), 50)
        np.testing.assert_allclose(fused.logits, plain.logits, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(fused.argmax, plain.argmax)


def test_fusion_leaves_eight_ops_a_layer_and_no_primitive_but_the_last() -> None:
    plan = fuse(lower(tiny_spec(layers=3, qk_norm=True)))
    kinds = [op.kind for op in plan.ops]
    layer = ["AddNorm", "Linear", "RopeWrite", "Attention", "Linear", "AddNorm", "Linear", "Linear"]
    assert kinds[:9] == ["Embed", *layer]
    assert kinds[9:17] == layer
    primitive = {"RmsNorm", "Add", "HeadNorm", "Rope", "KvWrite", "Gate"}
    assert not primitive & set(kinds)


def test_after_the_last_attention_only_selected_rows_are_computed() -> None:
    plan = fuse(lower(tiny_spec()))
    last = max(i for i, op in enumerate(plan.ops) if isinstance(op, ops.Attention))
    for op in plan.ops[last + 1 :]:
        for name in op.writes:
            assert plan.buffers[name].rows != ops.Rows.TOKENS
    rows = [plan.buffers[name].rows for name in (plan.hidden, plan.logits, plan.argmax)]
    assert rows == [ops.Rows.SELECTED, ops.Rows.LOGITS, ops.Rows.LOGITS]


def test_activations_are_bfloat16_exactly_where_products_read_them() -> None:
    plan = fuse(lower(tiny_spec(), "bfloat16"))
    for op in plan.ops:
        if isinstance(op, ops.Linear):
            assert plan.buffers[op.x].element == "bfloat16"
    assert plan.buffers["x"].element == "float32"
    assert plan.buffers[plan.logits].element == "float32"


@settings(deadline=None, max_examples=25)
@given(
    layers=st.integers(1, 4),
    fused=st.booleans(),
    max_tokens=st.integers(1, 700),
    max_logits=st.integers(1, 300),
)
def test_buffers_that_live_together_never_share_bytes(
    layers: int, fused: bool, max_tokens: int, max_logits: int
) -> None:
    plan = lower(tiny_spec(layers=layers))
    plan = fuse(plan) if fused else plan
    memory = plan_memory(plan, max_tokens, max_logits)
    occupied: dict[str, tuple[int, int]] = {}
    last_use = {name: i for i, op in enumerate(plan.ops) for name in (*op.reads, *op.writes)}
    last_use |= dict.fromkeys((plan.logits, plan.argmax, plan.hidden), len(plan.ops))
    for i, op in enumerate(plan.ops):
        for name in op.writes:
            occupied[name] = (memory.offsets[name], memory.offsets[name] + memory.sizes[name])
        live = sorted(occupied.values())
        for (_, end), (start, _) in itertools.pairwise(live):
            assert end <= start
        occupied = {name: span for name, span in occupied.items() if last_use[name] > i}
    assert all(offset % ALIGNMENT == 0 for offset in memory.offsets.values())
    assert memory.total_bytes <= memory.unshared_bytes


def test_memory_does_not_grow_with_depth() -> None:
    shallow, deep = (fuse(lower(tiny_spec(layers=n))) for n in (2, 12))
    assert plan_memory(deep, 64, 64).total_bytes == plan_memory(shallow, 64, 64).total_bytes


def test_explain_prints_equal_layers_once() -> None:
    plan = fuse(lower(tiny_spec(layers=5)))
    text = explain(plan, plan_memory(plan, 64, 8))
    assert "layer 1 to 3" in text
    assert text.count("RopeWrite") == 3
    assert "in one arena" in text
