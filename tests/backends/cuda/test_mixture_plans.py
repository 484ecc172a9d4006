"""Whole tiny models with experts on the GPU's kernels: equal to the reference within rounding, to
themselves exactly."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")
pytest.importorskip("transformers", reason="it makes the models")

from support.checkpoints import VOCAB, tiny_checkpoint  # noqa: E402
from support.families import FAMILIES  # noqa: E402
from support.gptq_checkpoints import gptq_checkpoint  # noqa: E402
from support.kv_tables import in_groups  # noqa: E402
from support.packed_floats import fp8  # noqa: E402
from support.packed_integers import ints  # noqa: E402
from support.quantized_checkpoints import quantized_checkpoint  # noqa: E402
from support.tiny_plans import Chunk, step_of  # noqa: E402

from penstock.backends.cuda.bind import bind  # noqa: E402
from penstock.backends.cuda.buckets import Bucket  # noqa: E402
from penstock.backends.cuda.executor import CudaExecutor  # noqa: E402
from penstock.backends.cuda.memory import RESERVE, needs  # noqa: E402
from penstock.backends.reference.executor import ReferenceExecutor  # noqa: E402
from penstock.backends.registry import BACKENDS  # noqa: E402
from penstock.dtypes import QuantizationName  # noqa: E402
from penstock.errors import WeightError  # noqa: E402
from penstock.interface.executor import Limits  # noqa: E402
from penstock.interface.step import StepInput  # noqa: E402
from penstock.models.spec import DType, ExpertsSpec  # noqa: E402
from penstock.plan.fuse import fuse  # noqa: E402
from penstock.plan.lower import lower  # noqa: E402
from penstock.plan.plan import Plan  # noqa: E402
from penstock.quant import Quantization  # noqa: E402
from penstock.quant.choice import choose  # noqa: E402
from penstock.weights.checkpoint import open_weights  # noqa: E402
from penstock.weights.model_folder import load_model_spec  # noqa: E402

# Padding is computed, too, of whatever lies there.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

BLOCKS = 8
LIMITS = Limits(num_blocks=0, max_tokens=40, max_logit_rows=40, max_sequences=4, threads=1)


def tokens_of(seed: int, length: int) -> Any:
    return np.random.default_rng(seed).integers(0, VOCAB - 3, length).astype(np.int32)


A, B, C = tokens_of(1, 45), tokens_of(2, 40), tokens_of(3, 8)


@cache
def spec_of(family: str, case: str) -> Any:
    folder = tiny_checkpoint(family, **FAMILIES[family].cases[case])
    return folder, load_model_spec(folder)


def plan_of(
    family: str,
    case: str | None = None,
    dtype: DType = "float32",
    quantization: QuantizationName = "none",
    group: int | None = None,
    activations: bool = True,
) -> tuple[Plan, Any]:
    """The fused plan of a tiny model, and its weights."""
    folder, spec = spec_of(family, case or next(iter(FAMILIES[family].cases)))
    schemes = choose(quantization, group, True, activations=activations, window_columns=32)
    plan = fuse(lower(spec, dtype, 64, schemes))
    return plan, open_weights(folder, spec, plan.weights, dtype=dtype)


def limits_of(plan: Plan) -> Limits:
    return replace(LIMITS, num_blocks=len(plan.kv_groups) * BLOCKS)


def steps(plan: Plan) -> list[StepInput]:
    """Prompts, then decode beside a prompt, then each alone."""
    chosen = [
        [Chunk(A, 0, 31, [7, 2]), Chunk(C, 0, 5, [3], rows=[1, 4])],
        [Chunk(A, 31, 32, [7, 2]), Chunk(C, 5, 6, [3]), Chunk(B, 0, 9, [5], rows=[])],
        [Chunk(A, 32, 33, [7, 2])],
        [Chunk(C, 6, 7, [3]), Chunk(B, 9, 10, [5])],
    ]
    return [in_groups(step_of(chunks), len(plan.kv_groups), BLOCKS) for chunks in chosen]


QUICK = ("qwen2_moe", "gpt_oss", "glm4_moe", "phimoe")
"""Families whose first case is quick to test; all others are slow together."""
SLOW = (
    *("mixtral", "qwen3_moe", "granitemoe", "dots1", "ernie4_5_moe", "olmoe", "minimax_m2"),
    *("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "llama4_text"),
)
DENSE = ("deepseek-v2-yarn", "deepseek-v3-halves", "llama4-dense")
"""Cases of these families whose layers are all dense."""


def families() -> list[Any]:
    """The cases of each family with experts that a GPU runs."""
    return [
        pytest.param(family, case, marks=() if quick else pytest.mark.slow)
        for family in (*QUICK, *SLOW)
        for i, case in enumerate(FAMILIES[family].cases)
        for quick in (i == 0 and family in QUICK,)
    ]


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize(("family", "case"), families())
def test_logits_agree_with_the_reference(family: str, case: str, device: Any) -> None:
    plan, weights = plan_of(family, case)
    mixes = any(isinstance(layer.mlp, ExpertsSpec) for layer in plan.spec.layers)
    assert mixes or case in DENSE
    BACKENDS["cuda"].check_runnable(plan)
    executor = bind(plan, weights, limits_of(plan), device)
    reference = ReferenceExecutor(plan, weights, limits_of(plan))
    for step in steps(plan):
        expected, got = reference.run(step), executor.run(step)
        scale = np.abs(expected.logits).max()
        np.testing.assert_allclose(got.logits, expected.logits, rtol=0, atol=1e-4 * scale)
    executor.close()


QUANTIZED = [
    ("int8", None, True),
    ("int4", None, True),
    ("int4", 32, True),
    ("int4", None, False),
    ("int8", 64, False),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "form"),
    [
        pytest.param(family, form, marks=() if quick and form == QUANTIZED[0] else pytest.mark.slow)
        for family, quick in (("qwen3_moe", True), ("gpt_oss", False))
        for form in QUANTIZED
    ],
)
def test_quantized_experts_agree_with_the_reference(family: str, form: Any, device: Any) -> None:
    plan, weights = plan_of(family, None, "float32", *form)
    executor = bind(plan, weights, limits_of(plan), device)
    reference = ReferenceExecutor(plan, weights, limits_of(plan))
    for step in steps(plan)[:2]:
        expected, got = reference.run(step).logits, executor.run(step).logits
        # Where a value lies on the border of two codes, all that follows differs a little.
        assert np.abs(got - expected).max() < 0.05 * np.abs(expected).max()
        assert np.median(np.abs(got - expected)) < 1e-3 * np.abs(expected).max()
    executor.close()


@pytest.mark.parametrize("bits", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_experts_that_a_checkpoint_has_quantized(tmp_path: Path, bits: int, device: Any) -> None:
    sizes = {"moe_intermediate_size": 40}
    folder, _ = gptq_checkpoint(tmp_path, family="qwen3_moe", bits=bits, sym=False, config=sizes)
    spec = load_model_spec(folder)
    plan = fuse(lower(spec, "float32", 64, Quantization(activations=False)))
    weights = open_weights(folder, spec, plan.weights, dtype="float32")
    executor = bind(plan, weights, limits_of(plan), device)
    reference = ReferenceExecutor(plan, weights, limits_of(plan))
    for step in steps(plan)[:2]:
        expected, got = reference.run(step).logits, executor.run(step).logits
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    executor.close()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kept", ["groups", "floats"])
def test_formats_that_name_modules(tmp_path: Path, kept: str, device: Any) -> None:
    """Groups of four bits, in which some modules differ; and FP8, which becomes floats."""
    weights_of = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    pack, form = ints(symmetric=False), "pack-quantized"
    if kept == "floats":
        weights_of = {"num_bits": 8, "type": "float", "strategy": "channel"}
        pack, form = fp8((1, None), "weight_scale"), "float-quantized"
    own = {
        "quant_method": "compressed-tensors",
        "format": form,
        "ignore": ["lm_head"],
        "config_groups": {
            "a": {"targets": ["Linear"], "weights": weights_of | {"symmetric": kept == "floats"}}
        },
    }
    folder, floats = quantized_checkpoint(tmp_path, own, pack)
    spec, plain = load_model_spec(folder), load_model_spec(floats)
    plan = fuse(lower(spec, "float32", 64, Quantization(activations=False)))
    executor = bind(
        plan, open_weights(folder, spec, plan.weights, dtype="float32"), limits_of(plan), device
    )
    other = fuse(lower(plain, "float32", 64))
    weights = open_weights(floats, plain, other.weights, dtype="float32")
    reference = ReferenceExecutor(other, weights, limits_of(other))
    for step in steps(plan)[:2]:
        expected, got = reference.run(step).logits, executor.run(step).logits
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    executor.close()


def test_columns_of_experts_in_another_order_are_refused(tmp_path: Path, device: Any) -> None:
    form: dict[str, Any] = {"shuffled": True, "desc_act": True, "family": "mixtral"}
    folder, _ = gptq_checkpoint(tmp_path, **form)
    spec = load_model_spec(folder)
    plan = fuse(lower(spec, "float32", 64))
    weights = open_weights(folder, spec, plan.weights, dtype="float32")
    with pytest.raises(WeightError, match="desc_act false or static_groups true"):
        bind(plan, weights, limits_of(plan), device)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "dtype", "quantization"),
    [
        ("qwen3_moe", "bfloat16", "none"),
        pytest.param("gpt_oss", "bfloat16", "none", marks=pytest.mark.slow),
        pytest.param("qwen3_moe", "bfloat16", "int4", marks=pytest.mark.slow),
    ],
)
def test_a_row_has_the_same_bits_in_any_step(
    family: str, dtype: DType, quantization: QuantizationName, device: Any
) -> None:
    """Alone, beside others, and padded to a captured step, whose padding has no experts."""
    plan, weights = plan_of(family, None, dtype, quantization)
    limits = limits_of(plan)
    executors = [bind(plan, weights, limits, device) for _ in range(3)]
    together, alone, padded = executors
    prompt, mixed, one, two = steps(plan)
    expected = [together.run(step).logits.copy() for step in (prompt, mixed, one, two)]
    groups = len(plan.kv_groups)
    for chunk, step, row in (
        (Chunk(A, 0, 31, [7, 2]), 0, 0),
        (Chunk(C, 0, 5, [3], rows=[1, 4]), 0, slice(1, 3)),
        (Chunk(A, 31, 32, [7, 2]), 1, 0),
        (Chunk(C, 5, 6, [3]), 1, 1),
    ):
        got = alone.run(in_groups(step_of([chunk]), groups, BLOCKS)).logits
        np.testing.assert_array_equal(got.reshape(-1), expected[step][row].reshape(-1))
    for step, wanted, bucket in (
        (prompt, expected[0], Bucket(40, 40)),
        (mixed, expected[1], Bucket(16, 4)),
        (one, expected[2], Bucket(1, 1)),
        (two, expected[3], Bucket(8, 8)),
    ):
        got = run_padded(padded, step, bucket)
        np.testing.assert_array_equal(got[: len(wanted)], wanted)
    for executor in executors:
        executor.close()


def run_padded(executor: CudaExecutor, step: StepInput, bucket: Bucket) -> Any:
    assert executor._program is not None
    results = executor._program.run(executor._write_padded(step, bucket))
    return results.logits.cpu().numpy().copy()


@pytest.mark.parametrize("quantization", ["none", "int4"])
def test_what_is_reckoned_is_what_binding_allocates(
    quantization: QuantizationName, device: Any
) -> None:
    """But for attention's scratch, which is less where kernels are interpreted."""
    from backends.cuda.test_memory import tensor_bytes

    if device.type != "cpu":
        pytest.skip("other tensors of a GPU's process come and go")
    plan, weights = plan_of("gpt_oss", None, "bfloat16", quantization)
    limits = replace(limits_of(plan), num_blocks=0)
    need = needs(plan, limits)
    before = tensor_bytes()
    executor = bind(plan, weights, limits, device)
    kept = sum(size for at, size in tensor_bytes().items() if at not in before)
    pinned = 2 * executor._buffer._pinned.length * 4  # these are in the host's memory
    attention = sum(kernel.scratch_bytes for kernel in executor._attention)
    assert 0 <= need.total - RESERVE - (kept - pinned) <= 200 * attention
    executor.close()
