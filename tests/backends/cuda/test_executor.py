"""Whole tiny plans on the GPU's kernels: equal to the reference within rounding, to themselves
exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.tiny_plans import (  # noqa: E402
    MALFORMED,
    Chunk,
    broken,
    dummy_weights,
    make_spec,
    step_of,
    tokens_of,
)

from penstock.backends.cuda.bind import bind  # noqa: E402
from penstock.backends.cuda.executor import CudaExecutor  # noqa: E402
from penstock.backends.cuda.step import idle_step, idle_tree, padding  # noqa: E402
from penstock.backends.reference.executor import ReferenceExecutor  # noqa: E402
from penstock.cache.geometry import KvDType  # noqa: E402
from penstock.errors import ConfigError, EngineDeadError  # noqa: E402
from penstock.interface.executor import Limits, Sampling  # noqa: E402
from penstock.interface.step import StepInput  # noqa: E402
from penstock.models.spec import DType, ModelSpec  # noqa: E402
from penstock.plan import ops  # noqa: E402
from penstock.plan.fuse import fuse  # noqa: E402
from penstock.plan.lower import lower  # noqa: E402
from penstock.plan.plan import Plan  # noqa: E402
from penstock.plan.shard import shard  # noqa: E402
from penstock.quant.choice import choose  # noqa: E402
from penstock.weights.dummy import DummyWeights  # noqa: E402

LIMITS = Limits(num_blocks=40, max_tokens=48, max_logit_rows=48, max_sequences=4, threads=1)
A, B, C = tokens_of(1, 45), tokens_of(2, 40), tokens_of(3, 8)
A_BLOCKS, B_BLOCKS = [7, 39], [12, 5]

SPECS = {
    "bias": make_spec(bias=True, tie=False),
    "qk_norm": make_spec(qk_norm=True, dim=32, rope_dim=32),
    "window": make_spec(window=33, heads=(4, 4), activation="gelu_tanh"),
    "part_rotated": make_spec(rope_dim=8, heads=(8, 1), activation="gelu"),
}


def make_plan(spec: ModelSpec, dtype: DType, kv_dtype: KvDType | None = None) -> Plan:
    return fuse(lower(spec, dtype, kv_dtype=kv_dtype))


def steps() -> Iterator[StepInput]:
    """Prefill in chunks, mixed with decode, over scattered blocks; then a fork of A."""
    yield step_of([Chunk(A, 0, 31, A_BLOCKS), Chunk(C, 0, 5, [2], rows=[1, 4])])
    yield step_of([Chunk(B, 0, 36, B_BLOCKS, rows=[]), Chunk(A, 31, 35, A_BLOCKS)])
    yield step_of([Chunk(B, 36, 37, B_BLOCKS), Chunk(A, 35, 36, A_BLOCKS), Chunk(C, 5, 6, [2])])
    yield step_of([Chunk(A, 36, 37, A_BLOCKS, rows=[])])
    yield step_of([Chunk(A, 37, 38, [7, 21]), Chunk(B, 37, 39, B_BLOCKS)], [(39, 21)])


@pytest.mark.slow
@pytest.mark.thinned(5)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bias", "bfloat16"),
        ("qk_norm", "float32"),
        ("window", "bfloat16"),
        ("part_rotated", "float32"),
    ],
)
def test_logits_agree_with_the_reference(name: str, dtype: DType, device: Any) -> None:
    spec = SPECS[name]
    plan, weights = make_plan(spec, dtype), dummy_weights(spec, 3, dtype)
    executor = bind(plan, weights, LIMITS, device)
    reference = ReferenceExecutor(plan, weights, LIMITS)
    tolerance = {"float32": 3e-5, "bfloat16": 6e-2}[dtype]
    for step in steps():
        expected, got = reference.run(step), executor.run(step)
        assert got.logits.shape == expected.logits.shape == (len(step.logit_rows), 211)
        assert got.logits.dtype == np.float32
        np.testing.assert_allclose(got.logits, expected.logits, rtol=0, atol=tolerance)
        np.testing.assert_array_equal(got.argmax, got.logits.argmax(axis=1))
    executor.close()


@pytest.mark.slow
def test_hidden_states_agree_with_the_reference_and_change_no_logits(device: Any) -> None:
    spec = SPECS["qk_norm"]
    plan, weights = make_plan(spec, "bfloat16"), dummy_weights(spec, 3, "bfloat16")
    executor = bind(plan, weights, LIMITS, device)
    reference = ReferenceExecutor(plan, weights, LIMITS)
    everything = Chunk(B, 0, 36, B_BLOCKS, rows=[], hidden=range(36))
    decode = Chunk(C, 0, 5, [2], rows=[1, 4], hidden=[0, 3])
    for chunks in ([everything, decode], [everything]):
        step = step_of(chunks)
        expected, got = reference.run(step).hidden, executor.run(step)
        assert got.hidden is not None
        assert got.hidden.shape == (len(step.logit_rows) + len(step.hidden_rows), spec.hidden_size)
        np.testing.assert_allclose(got.hidden, expected, rtol=0, atol=6e-2)
        whole = np.asarray(got.hidden)
        outcome = executor.submit(step, Sampling(features=True)).wait()
        assert outcome.hidden is not None
        np.testing.assert_array_equal(outcome.hidden, whole[len(step.logit_rows) :])
        np.testing.assert_array_equal(outcome.features, whole)
    alone = step_of([replace(decode, hidden=[])])
    mixed = executor.run(step_of([everything, decode])).logits
    np.testing.assert_array_equal(executor.run(alone).logits, mixed)
    executor.close()


@pytest.mark.thinned(7)
@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "tolerance"),
    [
        ("float16", "float16", 3e-3),
        ("bfloat16", "int8", 6e-2),
        ("float32", "float16", 3e-3),
        ("float32", "int4", 6e-2),
        ("float32", "k8v4", 6e-2),
        ("float32", "fp8", 3e-2),
    ],
)
def test_other_types(dtype: DType, kv_dtype: KvDType, tolerance: float, device: Any) -> None:
    spec = SPECS["qk_norm"]
    plan, weights = make_plan(spec, dtype, kv_dtype), dummy_weights(spec, 3, dtype)
    executor = bind(plan, weights, LIMITS, device)
    reference = ReferenceExecutor(plan, weights, LIMITS)
    for step in list(steps())[:2]:
        expected, got = reference.run(step).logits, executor.run(step).logits
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_float16_is_multiplied_as_float16(quantization: Any, device: Any) -> None:
    """Logits are within rounding of the reference that rounds where this does, and of none."""
    spec = SPECS["qk_norm"]
    weights = dummy_weights(spec, 3, "float16")
    schemes = choose(quantization, 32 if quantization == "int4" else None, True, activations=False)
    plan, wide = (fuse(lower(spec, "float16", None, schemes, half=half)) for half in (True, False))
    read = {plan.buffers[op.x].element for op in plan.ops if isinstance(op, ops.Linear)}
    assert read == {"float16"}
    executor = bind(plan, weights, LIMITS, device)
    reference, exact = (ReferenceExecutor(each, weights, LIMITS) for each in (plan, wide))
    for step in list(steps())[:3]:
        got = executor.run(step).logits
        np.testing.assert_allclose(got, reference.run(step).logits, rtol=0, atol=4e-3)
        np.testing.assert_allclose(got, exact.run(step).logits, rtol=0, atol=6e-3)


def test_a_residual_stream_past_what_float16_holds_is_kept(device: Any) -> None:
    spec = SPECS["qk_norm"]
    weights = dummy_weights(spec, 3, "float16")
    large = Scaled(weights, "embed", 6e4)  # times a few hundredths, and added up
    plan = fuse(lower(spec, "float16", half=True))
    assert plan.buffers["x"].element == "float32"
    executor = bind(plan, large, LIMITS, device)
    (step,) = list(steps())[:1]
    logits = executor.run(step).logits
    assert np.isfinite(logits).all()
    expected = ReferenceExecutor(plan, large, LIMITS).run(step).logits
    np.testing.assert_allclose(logits, expected, rtol=4e-3, atol=4e-3 * np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "group", "zero_points", "activations"),
    [("int8", None, False, True), ("int4", None, False, False), ("int4", 32, True, False)],
)
def test_quantized_logits_agree_with_the_reference(
    name: Any, group: int | None, zero_points: bool, activations: bool, device: Any
) -> None:
    """Rounded activations may fall on either side of a border between two codes."""
    spec = SPECS["bias"]
    schemes = choose(
        name,
        group,
        True,
        zero_points=zero_points,
        activations=activations,
        window_columns=32,
    )
    plan, weights = (
        fuse(lower(spec, "bfloat16", quantization=schemes)),
        dummy_weights(spec, 3, "bfloat16"),
    )
    executor = bind(plan, weights, LIMITS, device)
    reference = ReferenceExecutor(plan, weights, LIMITS)
    for step in list(steps())[:2]:
        expected, got = reference.run(step).logits, executor.run(step).logits
        error = np.abs(got - expected)
        assert error.max() < (0.25 if activations else 6e-2)
        assert error.mean() < (0.03 if activations else 0.01)


class Scaled:
    """Weights of which one is larger."""

    def __init__(self, weights: DummyWeights, name: str, factor: float) -> None:
        self._weights, self._name, self._factor = weights, name, factor

    def get(self, name: str) -> Any:
        array = self._weights.get(name)
        return (array * self._factor).astype(array.dtype) if name == self._name else array

    def names(self) -> Any:
        return self._weights.names()


def last_logits(executor: CudaExecutor, chunks: Sequence[Chunk]) -> Any:
    return executor.run(step_of(chunks)).logits[-1].copy()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "kv_dtype"), [("bfloat16", None), ("float32", "int8"), ("float32", "int4")]
)
def test_a_row_is_bitwise_its_own(dtype: DType, kv_dtype: KvDType | None, device: Any) -> None:
    """Whatever the chunks, the batch and the blocks, the same bits come out."""
    spec = SPECS["bias"]
    executor = bind(make_plan(spec, dtype, kv_dtype), dummy_weights(spec, 3, dtype), LIMITS, device)
    outcomes = [last_logits(executor, [Chunk(A, 0, 45, A_BLOCKS)])]
    for cut in (32, 44):
        last_logits(executor, [Chunk(A, 0, cut, [1, 3])])
        outcomes.append(last_logits(executor, [Chunk(A, cut, 45, [1, 3])]))
    for start, end in ((0, 42), (42, 43), (43, 44), (44, 45)):  # at last by token, in company
        others = [Chunk(C, 0, 5, [2])] if end == 45 else []
        got = last_logits(executor, [*others, Chunk(A, start, end, [9, 8])])
    outcomes.append(got)
    assert len({row.tobytes() for row in outcomes}) == 1


@pytest.fixture(scope="module")
def tiny(device: Any) -> CudaExecutor:
    spec = SPECS["window"]
    return bind(make_plan(spec, "float32"), dummy_weights(spec, 3, "float32"), LIMITS, device)


def test_what_is_launched_before_the_first_request_leaves_the_cache_alone(
    tiny: CudaExecutor,
) -> None:
    tiny.run(step_of([Chunk(A, 0, 33, A_BLOCKS), Chunk(C, 0, 5, [0])]))
    before = [data.clone() for cache in tiny._caches for data in cache.arrays]
    for step, rows in ((idle_step(5, 2), 2), (idle_tree(), 3)):
        logits = tiny._launch(step, attending=padding(0, 0)).logits
        assert logits.shape == (rows, 211)
    after = [data for cache in tiny._caches for data in cache.arrays]
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


@pytest.mark.parametrize(("changes", "message"), MALFORMED)
def test_a_malformed_step_is_refused_by_cause(
    changes: dict[str, Any], message: str, tiny: CudaExecutor
) -> None:
    with pytest.raises(ValueError, match=message):
        tiny.run(broken(step_of([Chunk(C, 0, 2, [1])]), **changes))


def test_a_step_beyond_the_limits_is_refused(tiny: CudaExecutor) -> None:
    long = np.zeros(49, np.int32)
    with pytest.raises(ValueError, match="1 to 48 tokens, not 49"):
        tiny.run(step_of([Chunk(long, 0, 49, [0, 1])]))
    with pytest.raises(ValueError, match="1 to 4 sequences, not 5"):
        tiny.run(step_of([Chunk(C, 0, 1, [b]) for b in range(5)]))


def test_a_failing_gpu_ends_the_engine_with_one_message(
    tiny: CudaExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(step: object) -> Any:
        raise torch.AcceleratorError(
            "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be ..."
        )

    monkeypatch.setattr(tiny._program, "run", fail)
    with pytest.raises(EngineDeadError, match="illegal memory access was encountered; the engine"):
        tiny.run(step_of([Chunk(C, 0, 2, [1])]))


def test_a_closed_executor_runs_no_more(device: Any) -> None:
    spec = SPECS["window"]
    limits = replace(LIMITS, max_tokens=4, max_logit_rows=4)
    executor = bind(make_plan(spec, "float32"), dummy_weights(spec, 3, "float32"), limits, device)
    executor.close()
    executor.close()
    with pytest.raises(RuntimeError, match="closed"):
        executor.run(step_of([Chunk(C, 0, 2, [1])]))


@dataclass(frozen=True)
class _Unheard(ops.Op):
    """An op that no backend knows."""


def test_an_op_without_a_kernel_is_refused_by_name(device: Any) -> None:
    spec = SPECS["window"]
    plan = make_plan(spec, "float32")
    plan = replace(plan, ops=(*plan.ops, _Unheard()))
    with pytest.raises(ConfigError, match="op _Unheard has no GPU kernel"):
        bind(plan, dummy_weights(spec, 0, "float32"), LIMITS, device)


def test_a_ranks_share_is_refused(device: Any) -> None:
    plan = fuse(shard(lower(make_spec(), "float32"), 0, 2))
    with pytest.raises(ConfigError, match=r"is one rank's, and there is no group of ranks"):
        bind(plan, DummyWeights(plan.weights, 0, "float32"), LIMITS, device)


def test_a_head_that_attention_lacks_is_refused(device: Any) -> None:
    spec = make_spec(dim=6, rope_dim=6)
    with pytest.raises(ConfigError, match=r"a head of 6.*--backend cpu"):
        bind(make_plan(spec, "float32"), dummy_weights(spec, 0, "float32"), LIMITS, device)
