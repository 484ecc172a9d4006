"""Checkpoints in FP8 and NVFP4: exactly the values that they stand for, as floats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.needs import needs_native
from support.packed_floats import fp8, nvfp4, spread
from support.quantized_checkpoints import (
    Pack,
    assert_values,
    edit_config,
    edit_tensors,
    logits,
    quantized_checkpoint,
)

from penstock.errors import ModelError, WeightError
from penstock.plan.lower import lower
from penstock.quant import CodebookTensor
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec

Q = "model.layers.1.self_attn.q_proj"
BLOCKS: dict[str, Any] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 64],
}
WHOLE: dict[str, Any] = {
    "quant_method": "fp8",
    "activation_scheme": "static",
    "ignored_layers": ["lm_head"],
}
FBGEMM: dict[str, Any] = {
    "quant_method": "fbgemm_fp8",
    "activation_scale_ub": 1200.0,
    "modules_to_not_convert": ["lm_head", "model.layers.1"],
}
OPT: dict[str, Any] = {
    "quant_method": "modelopt",
    "quant_algo": "FP8",
    "ignore": ["lm_head"],
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "producer": {"name": "modelopt", "version": "0.30"},
}


CASES: list[Any] = [
    pytest.param(BLOCKS, fp8((32, 64), "weight_scale_inv"), {}, id="blocks"),
    pytest.param(
        BLOCKS | {"scale_fmt": "ue8m0"}, fp8((32, 64), "weight_scale_inv", e8m0=True), {}, id="e8m0"
    ),
    pytest.param(
        BLOCKS | {"modules_to_not_convert": ["model.layers.0.mlp", "lm_head"]},
        fp8((32, 64), "weight_scale", ("lm_head", "layers.0.mlp")),
        {},
        id="left-out",
    ),
    pytest.param(
        WHOLE, fp8((None, None), "weight_scale", flat=True, beside=("input_scale",)), {}, id="whole"
    ),
    pytest.param(
        WHOLE | {"weight_block_size": None, "dequantize": False},
        fp8((None, None), "weight_scale_inv", beside=("activation_scale",)),
        {},
        id="whole-inv",
    ),
    pytest.param(FBGEMM, fp8((1, None), "weight_scale", ("lm_head", "layers.1")), {}, id="fbgemm"),
    pytest.param(
        OPT,
        fp8((None, None), "weight_scale", flat=True, beside=("input_scale", "k_scale")),
        {},
        id="modelopt",
    ),
    pytest.param(BLOCKS, fp8((32, 64), "weight_scale_inv"), {"family": "phi3"}, id="fused"),
    pytest.param(
        BLOCKS,
        fp8((32, 64), "weight_scale_inv", ("lm_head", ".gate.")),
        {"family": "mixtral"},
        id="experts",
    ),
    pytest.param(
        BLOCKS,
        fp8((32, 64), "weight_scale_inv", ("lm_head", "mlp.gate.")),
        {"family": "deepseek_v3", "intermediate_size": 100},
        id="latents",
    ),
]


@pytest.mark.parametrize(("config", "pack", "fields"), CASES)
def test_every_value_is_the_one_that_is_stored(
    tmp_path: Path, config: Any, pack: Pack, fields: Any
) -> None:
    packed, floats = quantized_checkpoint(tmp_path, config, pack, **fields)
    assert_values(packed, floats)
    np.testing.assert_array_equal(logits(packed), logits(floats))


@needs_native
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_backends_read_floats(tmp_path: Path, dtype: str) -> None:
    pack = fp8((32, 64), "weight_scale_inv", ("lm_head", ".gate."))
    packed, floats = quantized_checkpoint(tmp_path, BLOCKS, pack, family="mixtral")
    got, expected = (logits(each, "cpu", dtype=dtype) for each in (packed, floats))
    np.testing.assert_array_equal(got, expected)


def test_nvfp4(tmp_path: Path) -> None:
    config = OPT | {"quant_algo": "NVFP4", "group_size": 16}
    packed, floats = quantized_checkpoint(
        tmp_path, config, nvfp4(16, "weight_scale_2", False, "weight")
    )
    assert_values(packed, floats)


def test_the_file_that_older_checkpoints_have_beside_their_configuration(tmp_path: Path) -> None:
    pack = fp8((None, None), "weight_scale", flat=True)
    packed, floats = quantized_checkpoint(tmp_path, OPT, pack)
    config = json.loads((packed / "config.json").read_text())
    del config["quantization_config"]
    (packed / "config.json").write_text(json.dumps(config))
    own: dict[str, Any] = {
        "producer": {"name": "modelopt", "version": "0.17"},
        "quantization": {
            "quant_algo": "FP8",
            "kv_cache_quant_algo": "FP8",
            "exclude_modules": ["lm_head"],
        },
    }
    (packed / "hf_quant_config.json").write_text(json.dumps(own))
    assert_values(packed, floats)
    own["quantization"]["quant_algo"] = "W4A8_AWQ"
    (packed / "hf_quant_config.json").write_text(json.dumps(own))
    with pytest.raises(
        ModelError, match=r"hf_quant_config.json: quantization: quant_algo .'W4A8_AWQ'."
    ):
        load_model_spec(packed)


def test_runs_of_rows() -> None:
    """Also those that begin inside a tile."""
    generator = np.random.default_rng(3)
    table = generator.standard_normal(16).astype(np.float32)
    codes = generator.integers(0, 16, (70, 50)).astype(np.uint8)
    scales = generator.random((3, 4)).astype(np.float32)
    tensor = CodebookTensor(table, codes, scales, (32, 16))
    whole = table[codes] * spread(scales, 32, 16, 70, 50)
    np.testing.assert_array_equal(tensor.dequantize(), whole)
    part = tensor.rows((5, 40), (66, 70), (0, 1))
    expected = np.concatenate([whole[5:40], whole[66:70], whole[0:1]])
    np.testing.assert_array_equal(part.dequantize(), expected)
    np.testing.assert_array_equal(part.rows((30, 38)).dequantize(), expected[30:38])
    assert tensor.rows((7, 7)).dequantize().shape == (0, 50)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (BLOCKS | {"fmt": "e5m2"}, "fmt .'e5m2'. must be e4m3"),
        (BLOCKS | {"weight_block_size": [128]}, "must be two integers"),
        (BLOCKS | {"weight_block_size": [128, 0]}, "weight_block_size"),
        (BLOCKS | {"activation_scheme": "none"}, "must be dynamic or static"),
        (BLOCKS | {"modules_to_convert": ["embed"]}, "modules_to_convert .* is not supported"),
        (BLOCKS | {"expert_dtype": "fp4"}, "expert_dtype .'fp4'. must be fp8"),
        (BLOCKS | {"shuffle": 1}, "shuffle .1. is not a field Penstock knows"),
        (FBGEMM | {"weight_block_size": [1, 1]}, "is not a field Penstock knows"),
        (OPT | {"quant_algo": "INT4_AWQ"}, "quant_algo .'INT4_AWQ'. is not supported"),
        (OPT | {"pre_quant_scale": True}, "pre_quant_scale .True. must be false"),
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, config: Any, message: str) -> None:
    packed, _ = quantized_checkpoint(tmp_path, config, fp8((32, 64), "weight_scale_inv"))
    with pytest.raises(ModelError, match=message):
        load_model_spec(packed)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("weight_scale_inv", None, f"lacks tensor '{Q}.weight_scale_inv'.*incomplete"),
        ("weight", None, f"lacks tensor '{Q}.weight'.*incomplete"),
        ("weight_scale_inv", lambda x: -x, "negative scales"),
        ("weight_scale_inv", lambda x: x * 0, "no scale but 0"),
        ("weight_scale_inv", lambda x: x * np.float32(np.inf), "not finite"),
        ("weight_scale_inv", lambda x: x[:1].copy(), r"shape \[1, 1\].*asks for \[2, 1\]"),
        (
            "weight_scale_inv",
            lambda x: x.astype(np.int32),
            "stored as I32, but its .*scales in F32",
        ),
        ("weight", lambda x: x.astype(np.float32), "stored as F32, but its .*in F8_E4M3"),
        ("weight", lambda x: x.view(np.int8), "stored as I8, but its .*in F8_E4M3"),
    ],
)
def test_damaged_tensors(tmp_path: Path, name: str, change: Any, message: str) -> None:
    packed, _ = quantized_checkpoint(tmp_path, BLOCKS, fp8((32, 64), "weight_scale_inv"))
    edit_tensors(packed, {f"{Q}.{name}": change})
    spec = load_model_spec(packed)
    with pytest.raises(WeightError, match=message):
        open_weights(packed, spec, lower(spec).weights).get("layers.1.q")


def test_a_matrix_of_floats_among_others(tmp_path: Path) -> None:
    """It must be named."""
    pack = fp8((32, 64), "weight_scale_inv", ("lm_head", Q))
    packed, floats = quantized_checkpoint(tmp_path, BLOCKS, pack)
    spec = load_model_spec(packed)
    message = f"lacks tensor '{Q}.weight_scale_inv'.* but has '{Q}.weight'.*leaves out"
    with pytest.raises(WeightError, match=message):
        open_weights(packed, spec, lower(spec).weights)
    edit_config(packed, modules_to_not_convert=[Q])
    assert_values(packed, floats)


@pytest.mark.parametrize(
    "own",
    [
        {"quant_method": "gptq", "bits": 4},
        {"quant_method": "awq", "bits": 4, "group_size": 32},
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        OPT | {"quant_algo": "NVFP4"},
    ],
    ids=str,
)
def test_a_configuration_of_another_format(tmp_path: Path, own: Any) -> None:
    packed, _ = quantized_checkpoint(tmp_path, BLOCKS, fp8((32, 64), "weight_scale_inv"))
    path = packed / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": own}))
    spec = load_model_spec(packed)
    with pytest.raises(WeightError, match=r"q_proj.*another format than quantization_config says"):
        open_weights(packed, spec, lower(spec).weights)


def test_tensors_that_are_there_twice(tmp_path: Path) -> None:
    extra = {f"{Q}.weight_scale": np.ones((2, 1), np.float32)}
    pack = fp8((32, 64), "weight_scale_inv")
    packed, _ = quantized_checkpoint(tmp_path, BLOCKS, pack, extra=extra)
    spec = load_model_spec(packed)
    with pytest.raises(WeightError, match=f"have no place in the model: '{Q}.weight_scale'"):
        open_weights(packed, spec, lower(spec).weights)


def test_a_configuration_without_its_tensors(tmp_path: Path) -> None:
    packed, floats = quantized_checkpoint(tmp_path, BLOCKS, fp8((32, 64), "weight_scale_inv"))
    save_file(load_file(floats / "model.safetensors"), packed / "model.safetensors")
    spec = load_model_spec(packed)
    with pytest.raises(WeightError, match="remove quantization_config"):
        open_weights(packed, spec, lower(spec).weights)
