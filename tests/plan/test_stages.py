"""Plans cut into stages: together they compute bit by bit what the whole one does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.checkpoints import tiny_checkpoint
from support.drawn_specs import specs
from support.staged import run_staged
from support.state_steps import with_states
from support.tame_weights import TameWeights
from support.tiny_plans import Chunk, make_spec, step_of, tokens_of

from penstock.backends.reference.executor import ReferenceExecutor
from penstock.errors import ConfigError
from penstock.interface.executor import Limits
from penstock.interface.step import StepInput
from penstock.interface.weights import WeightSource
from penstock.models.spec import ModelSpec
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.plan import Plan
from penstock.plan.stages import Stage, cut
from penstock.plan.weight_bytes import weight_bytes
from penstock.quant.choice import choose
from penstock.weights.checkpoint import open_weights
from penstock.weights.dummy import DummyWeights
from penstock.weights.model_folder import load_model_spec

LIMITS = Limits(
    num_blocks=40, max_tokens=96, max_logit_rows=96, max_sequences=4, threads=1, num_states=40
)
A, B, C = tokens_of(1, 90), tokens_of(2, 70), tokens_of(3, 8)
A_BLOCKS, B_BLOCKS = [7, 0, 39], [12, 5, 31]
STEPS = [
    step_of([Chunk(A, 0, 60, A_BLOCKS), Chunk(C, 0, 5, [2], rows=[1, 2, 4], hidden=[0])]),
    step_of([Chunk(A, 60, 61, A_BLOCKS), Chunk(B, 0, 64, B_BLOCKS, rows=range(64))]),
    step_of([Chunk(B, 64, 65, B_BLOCKS), Chunk(A, 61, 62, A_BLOCKS), Chunk(C, 5, 6, [2])]),
    step_of([Chunk(A, 62, 70, A_BLOCKS, rows=[])]),
    step_of([Chunk(A, 70, 71, A_BLOCKS)]),
]


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def deep(layers: int, vocab: int = 211, **options: Any) -> ModelSpec:
    """A model of so many equal layers."""
    spec = make_spec(**options)
    return replace(spec, layers=spec.layers[:1] * layers, vocab_size=vocab)


def stages_of(plan: Plan, count: int) -> tuple[Stage, ...]:
    return cut(plan, fuse(plan), count)


def check(
    plan: Plan, weights: Callable[[Plan], WeightSource], counts: Sequence[int], steps: Any = STEPS
) -> None:
    """So many stages give bitwise what one process gives."""
    steps = [with_states(step) if plan.state_layers else step for step in steps]
    # Alike for all groups: the reference keeps layers apart.
    steps = [replace(step, groups=step.groups * len(plan.kv_groups)) for step in steps]
    whole = fuse(plan)
    alone = ReferenceExecutor(whole, weights(whole), LIMITS)
    expected = [alone.run(step) for step in steps]
    for count in counts:
        stages = stages_of(plan, count)
        executors = [ReferenceExecutor(s.plan, weights(s.plan), LIMITS) for s in stages]
        for step, one in zip(steps, expected, strict=True):
            got = run_staged(stages, executors, step)
            np.testing.assert_array_equal(got.logits, one.logits)
            np.testing.assert_array_equal(got.argmax, one.argmax)
            np.testing.assert_array_equal(got.hidden, one.hidden)


def dummies(dtype: Any) -> Callable[[Plan], WeightSource]:
    return lambda plan: DummyWeights(plan.weights, 3, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tie", [False, True])
def test_stages_compute_what_one_process_does(dtype: Any, tie: bool) -> None:
    check(lower(deep(5, tie=tie), dtype), dummies(dtype), [2, 3, 5])


@pytest.mark.parametrize(
    ("name", "group", "kv"), [("int8", None, "int8"), ("int4", 32, "int4"), ("int4", None, "int8")]
)
def test_quantized(name: Any, group: int | None, kv: Any) -> None:
    plan = lower(
        deep(3, qk_norm=True),
        "bfloat16",
        quantization=choose(name, group, True, activations=True),
        kv_dtype=kv,
    )
    check(plan, dummies("bfloat16"), [2, 3])


@pytest.mark.parametrize(
    "family",
    [
        "qwen3_moe",
        "deepseek_v3",
        "qwen3_next",
        "lfm2",
        "gemma3",
        *map(slow, ("gpt_oss", "granitemoehybrid", "olmo2", "falcon_h1", "mixtral", "llama4_text")),
    ],
)
def test_families(family: str) -> None:
    folder = tiny_checkpoint(family)
    spec = load_model_spec(folder)
    plan = lower(spec)
    most = most_stages(plan)
    assert most > 1
    check(plan, lambda own: open_weights(folder, spec, plan.weights, "float32"), [2, most])


def most_stages(plan: Plan) -> int:
    layers = len(plan.spec.layers)
    for count in range(layers, 1, -1):
        try:
            stages_of(plan, count)
        except ConfigError:
            continue
        return count
    return 1


@settings(
    deadline=None,
    max_examples=40,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
    ],
)
@given(specs(states=True), st.sampled_from(["float32", "bfloat16"]))
def test_whatever_a_layer_is_declared_to_be(spec: ModelSpec, dtype: Any) -> None:
    """Whatever is alive between two layers is handed on in its own type."""
    plan = lower(spec, dtype)
    tokens = tokens_of(1, 20)
    chunks = [Chunk(tokens, 0, 11, [3], rows=range(11))], [Chunk(tokens, 11, 12, [3])]
    whole = TameWeights(plan)
    most = most_stages(plan)
    if most == 1:
        with pytest.raises(ConfigError, match="take one stage, which is no pipeline"):
            stages_of(plan, 2)
        return
    check(plan, lambda own: whole, [2, most], [step_of(chunk) for chunk in chunks])


def test_stages_have_all_layers_and_weights_once() -> None:
    plan = lower(deep(7, tie=False))
    for count in range(2, 8):
        stages = stages_of(plan, count)
        assert [stage.number for stage in stages] == list(range(count))
        bounds = [stage.layers for stage in stages]
        assert bounds[0][0] == 0
        assert bounds[-1][1] == 7
        assert all(a[1] == b[0] < b[1] for a, b in pairwise(bounds))
        named = [name for stage in stages for name in stage.plan.weights]
        assert sorted(named) == sorted(fuse(plan).weights)
        cached = [layer for stage in stages for layer in stage.plan.kv_layers]
        assert tuple(cached) == plan.kv_layers
        for stage in stages:
            assert stage.is_last == (stage is stages[-1])
            assert stage.sent_bytes == (0 if stage.is_last else 4 * plan.spec.hidden_size)


def test_a_tied_embedding_is_at_both_ends() -> None:
    first, *_, last = stages_of(lower(deep(4, tie=True)), 3)
    assert "embed" in first.plan.weights
    assert "embed" in last.plan.weights


def test_stages_are_balanced_by_what_they_read() -> None:
    """A large output matrix leaves the last stage fewer layers."""
    small, large = (stages_of(lower(deep(12, vocab, tie=False)), 3) for vocab in (64, 15_000))
    assert [stage.layers[1] - stage.layers[0] for stage in small] == [4, 4, 4]
    layers = [stage.layers[1] - stage.layers[0] for stage in large]
    assert layers[2] < min(layers[:2])
    embedding = weight_bytes(large[0].plan) - weight_bytes(large[1].plan)
    assert embedding > 0  # of which a step reads a row for each token


def test_more_stages_than_layers() -> None:
    plan = lower(deep(3))
    with pytest.raises(ConfigError, match=r"^the model has 3 layers; take at most 3 stages$"):
        stages_of(plan, 4)
    with pytest.raises(ValueError, match="before it is fused"):
        cut(fuse(plan), fuse(plan), 2)


def test_a_step_that_lacks_what_a_stage_reads() -> None:
    from penstock.engine.stages.columns import own_step
    from penstock.processes.frames import WireError

    first, second = stages_of(lower(deep(2)), 2)
    step: StepInput = STEPS[0]
    size = step.num_tokens * first.sent_bytes
    assert own_step(second, step, np.zeros(size, np.uint8)).features.shape[0] == step.num_tokens
    for other in (0, size - 4, size + 1):
        with pytest.raises(WireError, match=f"comes with {other} bytes of .*, which take {size}"):
            own_step(second, step, np.zeros(other, np.uint8))
    with pytest.raises(WireError, match="tables of 0 groups"):
        own_step(first, replace(step, groups=()), np.empty(0, np.uint8))
