"""Experts that GPTQ quantized, each matrix by itself: their values, and what they compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import load_oracle
from support.gptq_checkpoints import edit_tensors, gptq_checkpoint
from support.needs import require_native
from support.quantized_checkpoints import TOKENS, assert_columns_in_any_order, logits

from penstock import LLM, SamplingParams
from penstock.backends.cpu import native
from penstock.backends.cpu.weight_bytes import weight_bytes
from penstock.errors import WeightError
from penstock.plan.lower import lower
from penstock.plan.ops import ExpertLinear
from penstock.quant import GroupTensor
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec

torch = pytest.importorskip("torch", reason="transformers needs torch")
pytest.importorskip("transformers", reason="the oracle")

FAMILIES: dict[str, dict[str, Any]] = {
    "mixtral": {"intermediate_size": 72},
    "qwen3_moe": {"moe_intermediate_size": 40},
    "qwen2_moe": {"moe_intermediate_size": 40, "shared_expert_intermediate_size": 24},
}
"""The last one has a shared expert, too, which is quantized as the others are."""
SHUFFLED = {"group": 32, "sym": False, "shuffled": True, "desc_act": True}
FORMS: list[dict[str, Any]] = [
    {"bits": 4, "group": 32},
    {"bits": 4, "group": 64, "sym": False, "version": "gptq_v2"},
    {"bits": 4, "group": -1},
    {"bits": 8, "group": 32, "sym": False},
    {"bits": 8, "group": -1},
    {"bits": 4, **SHUFFLED},
    {"bits": 8, **SHUFFLED},
]
CASES = [
    pytest.param(family, form, marks=() if i == j % 2 else pytest.mark.slow)
    for i, family in enumerate(FAMILIES)
    for j, form in enumerate(FORMS)
]


def checkpoint(at: Path, family: str, **form: Any) -> tuple[Path, Path]:
    return gptq_checkpoint(at, family=family, config=FAMILIES[family], **form)


@pytest.mark.parametrize(("family", "form"), CASES)
def test_every_value_is_the_one_that_is_stored(tmp_path: Path, family: str, form: Any) -> None:
    packed, floats = checkpoint(tmp_path, family, **form)
    spec = load_model_spec(packed)
    plan, plain = lower(spec), lower(load_model_spec(floats))
    ours = open_weights(packed, spec, plan.weights)
    theirs = open_weights(floats, plain.spec, plain.weights)
    experts = [op for op in plan.ops if isinstance(op, ExpertLinear)]
    stacks = [part.weight for op in experts for part in op.parts]
    assert len(stacks) == 6
    assert spec.quantized is not None
    assert {op.scheme for op in experts} == set(spec.quantized.schemes)
    for name in stacks:
        for expert in range(plan.weights[name].shape[0]):
            value = ours.member(name, expert)
            assert isinstance(value, GroupTensor)
            np.testing.assert_array_equal(value.dequantize(), theirs.member(name, expert))


@pytest.mark.thinned(5)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(("family", "form"), CASES)
def test_logits_and_greedy_tokens_are_those_of_transformers(
    tmp_path: Path, family: str, form: Any, backend: str
) -> None:
    """Given the values that the codes stand for."""
    if backend == "cpu":
        require_native()
    packed, floats = checkpoint(tmp_path, family, **form)
    oracle = load_oracle(floats)
    prompt = torch.tensor([TOKENS.tolist()])
    with torch.no_grad():
        expected = oracle(prompt).logits[0].numpy()
        greedy = oracle.generate(prompt, do_sample=False, min_new_tokens=64, max_new_tokens=64)
    got = logits(packed, backend)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    with LLM(
        model=str(packed),
        backend=backend,
        dtype="float32",
        quantize_activations=False,
        kv_cache_bytes=1 << 22,
        artifact=False,
    ) as llm:
        params = SamplingParams(temperature=0, max_tokens=64, min_tokens=64)
        (output,) = llm.generate([{"prompt_token_ids": TOKENS.tolist()}], params)
    assert list(output.outputs[0].token_ids) == greedy[0, len(TOKENS) :].tolist()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("activations", [False, True])
@pytest.mark.parametrize(("family", "form"), CASES)
def test_the_cpu_computes_what_the_reference_does(
    tmp_path: Path, family: str, form: Any, activations: bool
) -> None:
    require_native()
    packed, _ = checkpoint(tmp_path, family, **form)
    got, expected = (logits(packed, backend, activations) for backend in ("cpu", "reference"))
    if not activations:
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-4)
        return
    # A value on the border between two codes may go either way.
    assert np.quantile(np.abs(got - expected), 0.9) < 0.05
    assert np.corrcoef(got.ravel(), expected.ravel())[0, 1] > 0.999


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("activations", [False, True])
@pytest.mark.parametrize("isa", native.runnable())
@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe"])
def test_each_expert_has_an_order_of_its_own(
    tmp_path: Path, family: str, isa: str, activations: bool, dtype: Any
) -> None:
    packed, _ = checkpoint(tmp_path, family, bits=4, **SHUFFLED)
    assert_columns_in_any_order(packed, isa, activations, dtype)


def test_memory_for_the_orders_is_counted(tmp_path: Path) -> None:
    """Memory counts for each of five experts, and of each of three matrices."""
    packed, _ = checkpoint(tmp_path, "mixtral", bits=4, **SHUFFLED)
    spec = load_model_spec(packed)
    any_order = lower(spec)
    other, _ = checkpoint(tmp_path / "other", "mixtral", bits=4, group=32, sym=False)
    in_order = lower(load_model_spec(other))
    attention = 2 * (3 * 64 + 64) * 4
    assert weight_bytes(any_order) - weight_bytes(in_order) == (
        attention + 2 * 5 * (64 + 64 + 72) * 4
    )


def test_an_order_that_the_configuration_does_not_tell_of_is_refused(tmp_path: Path) -> None:
    require_native()
    packed, _ = checkpoint(tmp_path, "mixtral", bits=4, **SHUFFLED | {"desc_act": False})
    attention = {}
    for layer in range(2):
        for name in "qkvo":
            at = f"model.layers.{layer}.self_attn.{name}_proj.g_idx"
            attention[at] = lambda index: np.sort(index)
    edit_tensors(packed, **attention)
    problem = r"layers\.0\.experts\.gate groups columns.*says desc_act true.*desc_act false"
    with pytest.raises(WeightError, match=problem):
        logits(packed, "cpu")


@pytest.mark.parametrize(
    ("tensor", "change", "message"),
    [
        ("experts.3.w2.qweight", None, "lacks tensor .*is incomplete"),
        ("experts.3.w2.g_idx", None, "lacks tensor .*is incomplete"),
        ("experts.0.w1.scales", lambda x: x[:, :-1].copy(), r"shape \[2, 71\].*asks for \[2, 72\]"),
        ("gate.weight", None, "lacks tensor .*gate.weight"),
    ],
)
def test_damaged_tensors(tmp_path: Path, tensor: str, change: Any, message: str) -> None:
    packed, _ = checkpoint(tmp_path, "mixtral", bits=4)
    edit_tensors(packed, **{f"model.layers.1.block_sparse_moe.{tensor}": change})
    spec = load_model_spec(packed)
    with pytest.raises(WeightError, match=message):
        open_weights(packed, spec, lower(spec).weights)
