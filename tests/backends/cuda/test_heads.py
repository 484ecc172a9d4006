"""Heads that draft, and taps, on the GPU's kernels: beside the reference, and bit by bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from support.head_plans import HEADS, HIDDEN, eagle, eagle3, medusa, with_features  # noqa: E402
from support.kv_tables import changed  # noqa: E402
from support.tiny_plans import Chunk, dummy_weights, make_spec, step_of, tokens_of  # noqa: E402

from penstock.backends.cuda.bind import bind  # noqa: E402
from penstock.backends.cuda.buckets import Bucket  # noqa: E402
from penstock.backends.cuda.executor import CudaExecutor  # noqa: E402
from penstock.backends.cuda.kernels.combine import combine  # noqa: E402
from penstock.backends.cuda.memory import needs  # noqa: E402
from penstock.backends.cuda.step import (  # noqa: E402
    Layout,
    StepBuffer,
    arrays_of,
    pad_step,
    padding,
)
from penstock.backends.reference.executor import ReferenceExecutor  # noqa: E402
from penstock.backends.reference.numerics import activate, as_bfloat16  # noqa: E402
from penstock.interface.executor import Limits  # noqa: E402
from penstock.interface.step import StepInput, StepResult  # noqa: E402
from penstock.models.spec import DType  # noqa: E402
from penstock.plan.fuse import fuse  # noqa: E402
from penstock.plan.lower import lower  # noqa: E402
from penstock.plan.plan import Plan  # noqa: E402
from penstock.weights.dummy import DummyWeights  # noqa: E402

LIMITS = Limits(num_blocks=40, max_tokens=48, max_logit_rows=48, max_sequences=4, threads=1)
A, B, C = tokens_of(1, 45), tokens_of(2, 40), tokens_of(3, 8)
A_BLOCKS, B_BLOCKS = [7, 39], [12, 5]


def executor_of(plan: Plan, device: Any) -> CudaExecutor:
    return bind(plan, DummyWeights(plan.weights, 3, plan.weight_dtype), LIMITS, device)


def steps_of(plan: Plan) -> list[StepInput]:
    """Prefill, of some rows told as hidden states alone, and a decode step."""
    return [
        with_features(step_of(chunks), plan)
        for chunks in (
            [Chunk(A, 0, 35, A_BLOCKS, hidden=[3]), Chunk(C, 0, 5, [2], rows=[1, 4])],
            [Chunk(B, 0, 1, B_BLOCKS), Chunk(A, 35, 36, A_BLOCKS), Chunk(C, 5, 6, [2])],
        )
    ]


def arrays(result: StepResult) -> list[Any]:
    """Copies: where kernels are interpreted, a result is a view of what the next step writes."""
    assert result.hidden is not None
    taps = [] if result.taps is None else [result.taps]
    return [each.copy() for each in (result.logits, result.hidden, *result.more_logits, *taps)]


@pytest.mark.thinned(5)
@pytest.mark.parametrize("activation", ["none", "silu", "gelu", "gelu_tanh", "relu", "relu2"])
@pytest.mark.parametrize("adds", [True, False])
@pytest.mark.parametrize(
    ("in_type", "out_type"),
    [("float32", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16")],
)
def test_combine(activation: Any, adds: bool, in_type: str, out_type: str, device: Any) -> None:
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((2, 5, 1100)).astype(np.float32) * 2
    y = as_bfloat16(y) if in_type == "bfloat16" else y
    wide = torch.full((5, 1110), float("nan"), dtype=getattr(torch, out_type), device=device)
    given = torch.from_numpy(y).to(device, getattr(torch, in_type))
    combine(torch.from_numpy(x).to(device) if adds else None, given, wide[:, 3:1103], activation)
    expected = y if activation == "none" else activate(y, activation)
    expected = x + expected if adds else expected
    got = wide[:, 3:1103].float().cpu().numpy()
    if activation == "none":
        expected = as_bfloat16(expected) if out_type == "bfloat16" else expected
        np.testing.assert_array_equal(got, expected)
    else:
        rtol = 1e-5 if out_type == "float32" else 2**-7
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=1e-6 if rtol < 1e-4 else 1e-3)
    assert wide[:, :3].isnan().all()
    assert wide[:, 1103:].isnan().all()
    combine(None, given[:0], wide[:0, :1100])


def test_a_sum_may_be_one_of_its_terms(device: Any) -> None:
    x, y = torch.randn(2, 3, 70, generator=torch.Generator().manual_seed(1)).to(device)
    for out in (x.clone(), y.clone()):
        first, second = (out, y) if torch.equal(out, x) else (x, out)
        combine(first, second, out)
        assert torch.equal(out, x + y)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("name", "dtype"), [("medusa", "bfloat16"), ("eagle", "bfloat16"), ("eagle3", "float32")]
)
def test_heads_agree_with_the_reference(name: str, dtype: DType, device: Any) -> None:
    plan = fuse(HEADS[name](dtype))
    executor = executor_of(plan, device)
    reference = ReferenceExecutor(plan, DummyWeights(plan.weights, 3, dtype), LIMITS)
    for step in steps_of(plan):
        result = executor.run(step)
        for got, expected in zip(arrays(result), arrays(reference.run(step)), strict=True):
            assert got.shape == expected.shape
            assert got.dtype == np.float32
            np.testing.assert_allclose(
                got, expected, rtol=0, atol=3e-5 if dtype == "float32" else 6e-2
            )
        np.testing.assert_array_equal(result.argmax, result.logits.argmax(axis=1))
    executor.close()


@pytest.mark.slow
def test_taps_agree_with_the_reference_and_change_no_logits(device: Any) -> None:
    spec = make_spec(bias=True)
    plan = fuse(lower(spec, "float32", taps=(1, 0, 1)))
    executor = executor_of(plan, device)
    plain = executor_of(fuse(lower(spec, "float32")), device)
    reference = ReferenceExecutor(plan, dummy_weights(spec, 3, "float32"), LIMITS)
    for step in steps_of(plan):
        got, expected = executor.run(step), reference.run(step)
        assert got.taps is not None
        assert expected.taps is not None
        assert got.taps.shape == (len(step.logit_rows) + len(step.hidden_rows), 3 * HIDDEN)
        np.testing.assert_allclose(got.taps, expected.taps, rtol=0, atol=3e-5)
        np.testing.assert_array_equal(got.logits, plain.run(step).logits)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("make", [medusa, eagle3])
def test_a_padded_decode_step_gives_the_bits_of_the_step_as_it_is(make: Any, device: Any) -> None:
    """As for its graph: rows of padding have features, too, and disturb nobody."""
    plan = fuse(make("float32"))
    executor = executor_of(plan, device)
    _, decode = steps_of(plan)
    plain = arrays(executor.run(decode))

    def padded(step: StepInput) -> list[Any]:
        there = executor._write_padded(step, Bucket(4, 4))
        assert executor._program is not None
        results = executor._program.run(there)
        assert len(results.logits) == 4
        each = (results.logits, results.hidden, *results.more_logits)
        return [array[:3].cpu().numpy().copy() for array in each]

    for expected, got in zip(plain, padded(decode), strict=True):
        np.testing.assert_array_equal(got, expected)
    # Other features, the same tokens: what was sent last is what is read.
    turned = padded(replace(decode, features=decode.features[::-1].copy()))
    assert not np.array_equal(turned[0], plain[0])


@pytest.mark.thinned(2)
@pytest.mark.parametrize("make", [medusa, eagle3])
def test_a_row_of_a_head_is_bitwise_its_own(make: Any, device: Any) -> None:
    plan = fuse(make("float32"))
    executor = executor_of(plan, device)
    outcomes = set()
    for cut, others in ((0, []), (40, [Chunk(B, 0, 30, B_BLOCKS)])):
        if cut and plan.kv_layers:
            executor.run(with_features(step_of([Chunk(A, 0, cut, A_BLOCKS)]), plan))
        step = step_of([*others, Chunk(A, cut, 44, A_BLOCKS)])
        result = executor.run(with_features(step, plan))
        outcomes.add(b"".join(each[-1].tobytes() for each in arrays(result)))
    assert len(outcomes) == 1


def test_features_arrive_bit_by_bit(device: Any) -> None:
    buffer = StepBuffer(9000, device)
    plan = eagle("float32")
    steps = [with_features(step_of([Chunk(A, 0, 9, [3])]), plan), steps_of(plan)[1]]
    steps[0].features[0, :3] = np.nan, -0.0, np.inf
    for step in (*steps, steps[0], pad_step(steps[1], 4, 4)):
        arrays = arrays_of(step, [np.arange(9, dtype=np.int32)])
        layout = Layout.of([array.size for array in arrays])
        buffer.write(layout, arrays)
        there = buffer.views(layout).features
        assert there.dtype == torch.float32
        assert there.data_ptr() % 64 == 0
        assert there.shape == step.features.shape
        assert there.cpu().numpy().tobytes() == step.features.tobytes()
    assert not pad_step(steps[1], 4, 4).features[3:].any()
    assert padding(3, 3, 5).features.shape == (3, 5)
    layout = Layout.of([array.size for array in arrays_of(padding(3, 3))])
    assert buffer.views(layout).features.shape == (3, 0)


def test_features_are_refused_by_cause(device: Any) -> None:
    plan = fuse(eagle("float32"))
    executor = executor_of(plan, device)
    step = steps_of(plan)[0]
    with pytest.raises(ValueError, match=rf"\[40, {HIDDEN - 1}\], .* \[40, {HIDDEN}\]"):
        executor.run(replace(step, features=step.features[:, 1:]))
    with pytest.raises(ValueError, match="C-contiguous"):
        executor.run(replace(step, features=np.asfortranarray(step.features)))
    with pytest.raises(ValueError, match="slot -1"):
        executor.run(changed(step, slots=np.full_like(step.groups[0].slots, -1)))


def test_a_plan_without_a_cache_has_no_tables(device: Any) -> None:
    step = steps_of(fuse(eagle("float32")))[0]
    plan = fuse(medusa("float32"))
    executor = executor_of(plan, device)
    with pytest.raises(ValueError, match="tables of 1 groups of layers where 0 are cached"):
        executor.run(replace(steps_of(plan)[0], groups=step.groups))


@pytest.mark.parametrize("make", [medusa, eagle3])
def test_memory_is_reckoned_for_heads(make: Any) -> None:
    """Features take a step's buffer, and few drafts to tell less of the sampler's."""
    limits = replace(LIMITS, max_tokens=2000)
    plan = fuse(make("bfloat16"))
    need, narrow = (needs(plan, each).tables_and_scratch for each in (limits, LIMITS))
    assert need - narrow >= (2000 - 48) * plan.feature_size * 4
    assert needs(plan, limits).weights > 2 * sum(
        int(np.prod(weight.shape)) for weight in plan.weights.values()
    )
