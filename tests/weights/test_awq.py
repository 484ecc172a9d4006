"""AWQ's checkpoints: exactly the values that they stand for, on every backend that runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.gptq_checkpoints import edit_tensors
from support.needs import needs_native
from support.quantized_checkpoints import (
    Pack,
    assert_values,
    edit_config,
    logits,
    quantized_checkpoint,
    scales_of,
    words,
)

from penstock.errors import ModelError, WeightError
from penstock.models.awq import Awq
from penstock.plan.lower import lower
from penstock.quant import GroupScheme
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec

PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # the inverse of the columns 0, 2, 4, 6, 1, 3, 5, 7
Q = "model.layers.1.self_attn.q_proj"


def awq(group: int, zero_point: bool = True, skipped: tuple[str, ...] = ("lm_head",)) -> Pack:
    def pack(generator: np.random.Generator, module: str, n: int, k: int) -> Any:
        if any(name in module for name in skipped):
            return None
        size = k if group == -1 else group
        codes = generator.integers(0, 16, (k, n))
        zeros = (
            generator.integers(0, 16, (k // size, n)) if zero_point else np.full((k // size, n), 8)
        )
        scales = scales_of(generator, k, 8, k // size, n)
        points = (codes - np.repeat(zeros, size, axis=0)).astype(np.float32)
        values = (points * np.repeat(scales, size, axis=0)).T
        own = {
            "qweight": words(codes, 4, PLACES),
            "qzeros": words(zeros, 4, PLACES),
            "scales": scales.astype(np.float16),
        }
        return own, np.ascontiguousarray(values)

    return pack


def checkpoint(
    at: Path,
    group: int = 32,
    zero_point: bool = True,
    skipped: tuple[str, ...] = ("lm_head",),
    family: str = "llama",
    **fields: Any,
) -> tuple[Path, Path]:
    config = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "zero_point": zero_point,
        "version": "gemm",
        "modules_to_not_convert": [s for s in skipped if s != "lm_head"] or None,
    }
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256} if group > 64 else {}
    pack = awq(group, zero_point, skipped)
    return quantized_checkpoint(at, config, pack, family=family, **sizes, **fields)


@pytest.mark.parametrize(
    ("group", "zero_point"), [(32, True), (32, False), (-1, True), (128, True), (256, True)]
)
def test_every_value_is_the_one_that_is_stored(
    tmp_path: Path, group: int, zero_point: bool
) -> None:
    packed, floats = checkpoint(tmp_path, group, zero_point)
    kept = assert_values(packed, floats)
    assert len(kept) == 2 * 7
    size = {-1: None, 256: 128}.get(group, group)
    assert {value.scheme for value in kept.values()} == {GroupScheme(4, size, zero_point)}
    np.testing.assert_allclose(logits(packed), logits(floats), rtol=0, atol=2e-4)


@needs_native
def test_the_cpu_computes_what_the_values_do(tmp_path: Path) -> None:
    packed, floats = checkpoint(tmp_path)
    np.testing.assert_allclose(logits(packed, "cpu"), logits(floats), rtol=0, atol=2e-4)


def test_modules_that_are_left_out(tmp_path: Path) -> None:
    skipped = ("lm_head", "layers.0.self_attn", "down_proj")
    packed, floats = checkpoint(tmp_path, skipped=skipped)
    kept = assert_values(packed, floats)
    assert sorted(kept) == sorted(
        [f"layers.{i}.{name}" for i in range(2) for name in ("gate", "up")]
        + [f"layers.1.{name}" for name in ("q", "k", "v", "o")]
    )


def test_rows_of_fused_matrices(tmp_path: Path) -> None:
    packed, floats = checkpoint(tmp_path, family="phi3")
    assert len(assert_values(packed, floats)) == 2 * 7


def test_experts(tmp_path: Path) -> None:
    """Each is a matrix of its own; what chooses them is left out."""
    packed, floats = checkpoint(tmp_path, skipped=("lm_head", "gate"), family="mixtral")
    np.testing.assert_allclose(logits(packed), logits(floats), rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bits": 8}, r"bits .8. is not supported"),
        ({"group_size": 48}, "group_size .48. is not supported"),
        ({"version": "gemv"}, "version .'gemv'. is not supported; supported is gemm"),
        ({"zero_point": 1}, "zero_point .1. must be true or false"),
        ({"sym": True}, "sym .True. contradicts zero_point true"),
        ({"dynamic": {"-:a": {}}}, "dynamic .* is not supported"),
        ({"rotation": "x"}, "rotation .'x'. is not a field Penstock knows"),
        ({"modules_to_not_convert": "lm_head"}, "must be a list of text"),
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, fields: Any, message: str) -> None:
    packed, _ = checkpoint(tmp_path)
    edit_config(packed, **fields)
    with pytest.raises(ModelError, match=message):
        load_model_spec(packed)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (f"{Q}.qweight", None, f"lacks tensor '{Q}.qweight'.*incomplete"),
        (f"{Q}.qzeros", None, f"lacks tensor '{Q}.qzeros'.*incomplete"),
        (f"{Q}.scales", lambda x: -x, "negative scales"),
        (f"{Q}.scales", lambda x: x * 0, "no scale but 0"),
        (f"{Q}.scales", lambda x: x * np.float16(np.nan), "not finite"),
        (f"{Q}.scales", lambda x: x[:-1].copy(), r"shape \[1, 64\].*asks for \[2, 64\]"),
        (f"{Q}.qweight", lambda x: x.T.copy(), r"shape \[8, 64\].*asks for \[64, 8\]"),
    ],
)
def test_damaged_tensors(tmp_path: Path, name: str, change: Any, message: str) -> None:
    packed, _ = checkpoint(tmp_path)
    edit_tensors(packed, **{name: change})
    spec = load_model_spec(packed)
    with pytest.raises(WeightError, match=message):
        open_weights(packed, spec, lower(spec).weights).get("layers.1.q")


def test_zero_points_that_the_configuration_denies(tmp_path: Path) -> None:
    packed, _ = checkpoint(tmp_path)
    edit_config(packed, zero_point=False)
    spec = load_model_spec(packed)
    with pytest.raises(WeightError, match="zero_point is false; set it to true"):
        open_weights(packed, spec, lower(spec).weights).get("layers.1.q")


def test_matrices_that_cannot_have_been_packed() -> None:
    """96 columns in groups of 64, which GPTQ makes and AWQ does not; 20 rows."""
    with pytest.raises(ModelError, match="x has 96 columns, which are no whole groups of 64"):
        Awq(64).tensors("x", (32, 96))
    with pytest.raises(ModelError, match=r"x has 20 rows.*multiple of 8"):
        Awq(64).tensors("x", (20, 64))


def test_tensors_of_another_format(tmp_path: Path) -> None:
    """GPTQ's tensors have the same names, and other shapes."""
    packed, _ = checkpoint(tmp_path)
    assert f"{Q}.qweight" in load_file(packed / "model.safetensors")
    edit_config(packed, quant_method="gptq", zero_point=None, version=None, sym=False)
    spec = load_model_spec(packed)
    with pytest.raises(WeightError, match=r"shape \[64, 8\].*asks for \[8, 64\]"):
        open_weights(packed, spec, lower(spec).weights)
