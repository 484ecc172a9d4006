"""Experts in MXFP4: every value of the format, and a checkpoint beside transformers' reading."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from support.checkpoints import tiny_checkpoint
from support.kv_tables import in_groups
from support.needs import needs_native
from support.tiny_plans import Chunk, step_of

from penstock.backends.registry import backend as named
from penstock.cli.main import main
from penstock.config import EngineConfig
from penstock.engine.loader import load, plan_engine
from penstock.errors import WeightError
from penstock.interface.executor import Limits, run
from penstock.interface.sources import Packed, RowsOf
from penstock.models.float_codes import Mxfp4
from penstock.models.in_blocks import InBlocks
from penstock.models.spec import ModelSpec
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.ops import ExpertLinear
from penstock.quant import BlockTensor
from penstock.quant.formats import GGUF_FORMATS
from penstock.resolve.quantization import as_read
from penstock.weights.checkpoint import CheckpointWeights
from penstock.weights.model_folder import load_model_spec
from penstock.weights.safetensors import open_folder
from penstock.weights.source_checks import check
from penstock.weights.sources import read

EXPERTS, HIDDEN, WIDE = 5, 64, 32


def source(number: int, n: int, k: int) -> Packed:
    return Packed("w", (number, n, k), Mxfp4("_blocks", "_scales", in_groups=True))


def stored(folder: Path, blocks: NDArray[Any], scales: NDArray[Any]) -> Any:
    save_file({"w_blocks": blocks, "w_scales": scales}, folder / "model.safetensors")
    return open_folder(folder)


def test_every_code_and_every_scale(tmp_path: Path) -> None:
    """As ml_dtypes has the types, value by value: all bytes times all scales in bfloat16."""
    scales = np.arange(253, dtype=np.uint8).reshape(1, 253, 1)
    wide = np.repeat(scales, 16, axis=2)
    blocks = np.broadcast_to(np.arange(256, dtype=np.uint8).reshape(16, 16), (253, 16, 16))
    found = stored(tmp_path, np.ascontiguousarray(blocks)[None], wide)
    wanted = source(1, 253, 512)
    check(wanted, found)
    values = read(wanted, found, "bfloat16")
    assert isinstance(values, np.ndarray)
    assert values.dtype == ml_dtypes.bfloat16
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(253, 512).astype(np.uint8)
    by_code = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    by_scale = wide[0, :, :1].view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    np.testing.assert_array_equal(values[0].astype(np.float64), by_code * by_scale)
    np.testing.assert_array_equal(read(RowsOf(wanted, ((0, 0),)), found, "bfloat16"), values[:0])
    as_float32 = read(wanted, found, "float32")
    np.testing.assert_array_equal(as_float32, values.astype(np.float32))


@pytest.mark.parametrize(("scale", "why"), [(255, "are not finite"), (253, "make values")])
def test_scales_that_no_model_has_are_refused(scale: int, why: str, tmp_path: Path) -> None:
    scales = np.full((1, 2, 1), 120, np.uint8)
    scales[0, 1, 0] = scale
    found = stored(tmp_path, np.zeros((1, 2, 1, 16), np.uint8), scales)
    stack = source(1, 2, 32)
    in_blocks = InBlocks(Mxfp4("_blocks", "_scales", in_groups=True), GGUF_FORMATS["MXFP4"].scheme)
    for wanted in (stack, replace(stack, format=in_blocks)):
        with pytest.raises(WeightError, match=rf"'w_scales' has scales that {why}"):
            read(wanted, found, "bfloat16")


def test_values_too_large_for_float16_are_refused(tmp_path: Path) -> None:
    scales = np.full((1, 1, 1), 127 + 15, np.uint8)
    found = stored(tmp_path, np.full((1, 1, 1, 16), 0x77, np.uint8), scales)
    with pytest.raises(WeightError, match="too large for float16"):
        read(source(1, 1, 32), found, "float16")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny gpt-oss whose experts are drawn as codes and scales."""
    folder = tmp_path_factory.mktemp("mxfp4") / "model"
    shutil.copytree(tiny_checkpoint("gpt_oss", intermediate_size=WIDE), folder)
    tensors = load_file(folder / "model.safetensors")
    generator = np.random.default_rng(3)
    for layer in range(2):
        for name, n, k in (("gate_up_proj", 2 * WIDE, HIDDEN), ("down_proj", HIDDEN, WIDE)):
            at = f"model.layers.{layer}.mlp.experts.{name}"
            del tensors[at]
            blocks = generator.integers(0, 256, (EXPERTS, n, k // 32, 16))
            tensors[f"{at}_blocks"] = blocks.astype(np.uint8)
            tensors[f"{at}_scales"] = generator.integers(
                121, 125, (EXPERTS, n, k // 32), dtype=np.uint8
            )
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def weights_of(folder: Path) -> CheckpointWeights:
    spec = load_model_spec(folder)
    return CheckpointWeights(folder, spec, lower(spec).weights, "float32")


def test_a_checkpoint_is_read_as_transformers_reads_it(packed: Path, tmp_path: Path) -> None:
    """Which makes floats of it, too."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        packed,
        quantization_config=transformers.Mxfp4Config(dequantize=True),
        dtype="float32",
        local_files_only=True,
    )
    theirs = {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
    save_file(theirs, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((packed / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    ours, floats = weights_of(packed), weights_of(tmp_path)
    assert len(list(ours.names())) > 30
    for name in floats.names():
        whole = ours.get(name)
        np.testing.assert_array_equal(whole, floats.get(name), err_msg=name)
        if ".experts." in name and not name.endswith("bias"):
            np.testing.assert_array_equal(ours.member(name, 3), np.asarray(whole)[3])
            np.testing.assert_array_equal(floats.member(name, 3), np.asarray(whole)[3])


def test_blocks_of_another_type_or_shape_are_refused(packed: Path, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.experts.down_proj_blocks"
    tensors = load_file(packed / "model.safetensors")
    for i, (wrong, message) in enumerate(
        [
            (tensors[name].astype(np.int32), "its format has codes or scales in U8"),
            (tensors[name][:, :-1], r"has shape \[5, 63, 1, 16\].*asks for \[5, 64, 1, 16\]"),
        ]
    ):
        folder = tmp_path / str(i)
        shutil.copytree(packed, folder)
        changed = {**tensors, name: np.ascontiguousarray(wrong)}
        save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(WeightError, match=message):
            weights_of(folder)


def test_missing_scales_are_named(packed: Path, tmp_path: Path) -> None:
    shutil.copytree(packed, tmp_path, dirs_exist_ok=True)
    tensors = load_file(packed / "model.safetensors")
    del tensors["model.layers.0.mlp.experts.gate_up_proj_scales"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightError, match=r"lacks tensor '.*gate_up_proj_scales'"):
        weights_of(tmp_path)


def limited(spec: ModelSpec, *formats: str) -> ModelSpec:
    assert spec.quantized is not None
    return replace(spec, quantized=spec.quantized.limited(formats, rounded=False))


def test_experts_stay_in_blocks(packed: Path) -> None:
    spec = limited(load_model_spec(packed), "MXFP4")
    plan = lower(spec)
    experts = [op for op in plan.ops if isinstance(op, ExpertLinear)]
    assert {op.scheme for op in experts} == {GGUF_FORMATS["MXFP4"].scheme}
    ours, floats = CheckpointWeights(packed, spec, plan.weights, "float32"), weights_of(packed)
    for name in {part.weight for op in experts for part in op.parts}:
        for index in range(EXPERTS):
            matrix = ours.member(name, index)
            assert isinstance(matrix, BlockTensor)
            np.testing.assert_array_equal(matrix.dequantize(), floats.member(name, index))


@needs_native
def test_engines_multiply_by_blocks(packed: Path) -> None:
    """And compute what they do with floats."""
    chunk = Chunk(np.arange(40, dtype=np.int32), 0, 40, [1, 2], rows=range(40))
    step = in_groups(step_of([chunk]), 2, 4)
    results = {}
    for backend in ("cpu", "reference"):
        config = EngineConfig(
            model=str(packed), backend=backend, max_model_len=64, quantize_activations=False
        )
        executor = load(plan_engine(config), keeping="never")
        results[backend] = run(executor, step).logits.copy()
        executor.close()
    spec = load_model_spec(packed)
    plan = fuse(lower(spec, "float32"))
    limits = Limits(num_blocks=8, max_tokens=96, max_logit_rows=96, max_sequences=4, threads=2)
    executor = named("reference").bind(plan, weights_of(packed), limits)
    expected = run(executor, step).logits
    for got in results.values():
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-3 * np.abs(expected).max())


def test_when_they_become_floats(packed: Path, capsys: Any) -> None:
    """Every backend multiplies by blocks of experts; they become floats where they are rounded."""
    spec = load_model_spec(packed)
    for name in ("cpu", "cuda", "reference"):
        kept = as_read(spec, EngineConfig(model=str(packed)), named(name)).quantized
        assert kept is not None
        assert kept.schemes == (GGUF_FORMATS["MXFP4"].scheme,)
        assert not kept.as_floats
        config = EngineConfig(model=str(packed), quantization="int8")
        rounded = as_read(spec, config, named(name)).quantized
        assert rounded is not None
        assert not rounded.schemes
        assert rounded.as_floats == ("MXFP4",)
    common = ["explain", str(packed), "--no-plan", "--max-model-len", "64", "--backend"]
    assert main([*common, "reference"]) == 0
    assert "MXFP4 are" not in capsys.readouterr().out
    assert main([*common, "reference", "--quantization", "int8"]) == 0
    assert "in MXFP4 are rounded once more, to int8" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("size", [28, 32])
def test_floats_where_the_configuration_says_mxfp4(size: int, tmp_path: Path) -> None:
    """As of models that were trained further; their columns need not fill blocks."""
    plain = tiny_checkpoint("gpt_oss", intermediate_size=size)
    folder = shutil.copytree(plain, tmp_path / "folder")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config))
    spec = load_model_spec(folder)
    assert spec.quantized is None
    assert "says MXFP4, and all weights are stored in floats" in spec.notes[-1]
    expected, found = (
        CheckpointWeights(each, load_model_spec(each), lower(spec).weights, "float32")
        for each in (plain, folder)
    )
    for name in expected.names():
        assert np.array_equal(found.get(name), expected.get(name)), name
    (folder / "model.safetensors").unlink()
    assert load_model_spec(folder).quantized is not None
