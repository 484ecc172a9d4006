"""The residual stream at the input of layers: beside models that end there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.tiny_plans import Chunk, dummy_weights, make_spec, step_of, tokens_of

from penstock.backends.cpu import native
from penstock.backends.registry import backend as named
from penstock.errors import ModelError
from penstock.interface.executor import Executor, Limits
from penstock.interface.step import StepInput
from penstock.models.spec import DType, ModelSpec
from penstock.plan.explain import explain
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.memory import plan_memory
from penstock.plan.plan import Plan

LIMITS = Limits(num_blocks=8, max_tokens=64, max_logit_rows=64, max_sequences=4, threads=2)
TAPS = (0, 2, 3, 3, 1)
A, B = tokens_of(1, 50), tokens_of(2, 9)
BACKENDS = ["reference", *(["cpu"] if native.runnable() else [])]


def deep_spec(layers: int = 4) -> ModelSpec:
    spec = make_spec(bias=True)
    return replace(spec, layers=spec.layers[:1] * layers)


def executor_of(plan: Plan, backend: str, dtype: DType) -> Executor:
    # Of the deep model, so that a model of fewer layers has the same weights.
    return named(backend).bind(plan, dummy_weights(deep_spec(), 5, dtype), LIMITS)


def steps() -> list[StepInput]:
    return [
        step_of([Chunk(A, 0, 40, [3, 6], hidden=range(37)), Chunk(B, 0, 5, [1], hidden=[0, 2])]),
        step_of([Chunk(B, 5, 6, [1]), Chunk(A, 40, 50, [3, 6], hidden=[41, 44])]),
    ]


def ended_before(layer: int, dtype: DType) -> Plan:
    """The model of the first ``layer`` layers, which tells its residual stream."""
    spec = replace(deep_spec(), layers=deep_spec().layers[:layer])
    return fuse(replace(lower(spec, dtype), hidden="last"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tap_is_the_residual_stream_of_a_model_that_ends_there(
    backend: str, dtype: DType
) -> None:
    """Bit by bit, where a row's result does not depend on its neighbours; and no logit changes."""
    spec = deep_spec()
    tapped = executor_of(fuse(lower(spec, dtype, taps=TAPS)), backend, dtype)
    plain = executor_of(fuse(lower(spec, dtype)), backend, dtype)
    found, rows = [], []
    for step in steps():
        result, expected = tapped.run(step), plain.run(step)
        selected = len(step.logit_rows) + len(step.hidden_rows)
        assert result.taps is not None
        assert result.taps.shape == (selected, len(TAPS) * spec.hidden_size)
        assert result.taps.dtype == np.float32
        assert expected.taps is None
        np.testing.assert_array_equal(result.logits, expected.logits)
        found.append(result.taps.copy())
        rows.append(np.concatenate([step.logit_rows, step.hidden_rows]))
    columns = dict(zip(TAPS, range(len(TAPS)), strict=True))
    for layer in (1, 2, 3):
        executor = executor_of(ended_before(layer, dtype), backend, dtype)
        ended = [np.array(executor.run(step).hidden) for step in steps()]
        at = columns[layer] * spec.hidden_size
        for taps, hidden in zip(found, ended, strict=True):
            np.testing.assert_array_equal(taps[:, at : at + spec.hidden_size], hidden)
        executor.close()
    embed = dummy_weights(spec, 5, dtype).get("embed").astype(np.float32)
    for step, taps, chosen in zip(steps(), found, rows, strict=True):
        np.testing.assert_array_equal(taps[:, : spec.hidden_size], embed[step.token_ids[chosen]])
        twice = taps.reshape(len(taps), len(TAPS), -1)
        np.testing.assert_array_equal(twice[:, 2], twice[:, 3])
        assert not np.array_equal(twice[:, 1], twice[:, 2])
    tapped.close()
    plain.close()


def test_fused_taps_are_those_of_the_primitive_plan() -> None:
    primitive = lower(deep_spec(), "float32", taps=TAPS)
    executors = [executor_of(plan, "reference", "float32") for plan in (primitive, fuse(primitive))]
    for step in steps():
        plain, fused = (taps_of(executor, step) for executor in executors)
        np.testing.assert_allclose(fused, plain, rtol=1e-5, atol=1e-5)


def taps_of(executor: Executor, step: StepInput) -> NDArray[Any]:
    taps = executor.run(step).taps
    assert taps is not None
    return taps


@pytest.mark.parametrize("taps", [(-1,), (4,), (2, 7, 1)])
def test_a_layer_that_is_not_there_is_refused_with_those_that_are(taps: Sequence[int]) -> None:
    wrong = next(layer for layer in taps if layer not in range(4))
    with pytest.raises(ModelError, match=rf"layer {wrong}, .* layers 0 to 3$"):
        lower(deep_spec(), taps=taps)


def test_taps_leave_the_rest_of_a_plan_as_it_is() -> None:
    plain, tapped = fuse(lower(deep_spec())), fuse(lower(deep_spec(), taps=(2, 3)))
    assert plain.taps is None
    assert [op for op in tapped.ops if "taps" not in op.writes] == list(plain.ops)
    assert {name for name in tapped.buffers if name not in plain.buffers} == {tapped.taps}
    assert [op for op in tapped.ops if op.weights] == [op for op in plain.ops if op.weights]


def test_taps_are_kept_to_the_end_of_the_step_and_explained() -> None:
    plan = fuse(lower(deep_spec(), taps=(1, 3)))
    memory = plan_memory(plan, 32, 16)
    assert plan.taps is not None
    start = memory.offsets[plan.taps]
    taken = range(start, start + memory.sizes[plan.taps])
    written = [i for i, op in enumerate(plan.ops) if plan.taps in op.writes]
    for op in plan.ops[written[0] :]:
        for name in {*op.writes, *op.reads} - {plan.taps}:
            other = memory.offsets[name]
            assert other >= taken.stop or other + memory.sizes[name] <= taken.start
    text = explain(plan, memory)
    assert "SelectRows x -> taps[S,144]:float32  first=0\n" in text
    assert "SelectRows x -> taps[S,144]:float32  first=72\n" in text
