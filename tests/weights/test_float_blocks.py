"""Matrices of small floats are multiplied as their checkpoints have them: in blocks of codes and
scales with the values that are meant, fused, joined and of experts, too."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from safetensors.numpy import save_file
from support.needs import needs_native
from support.packed_bnb import four
from support.packed_floats import fp8, nvfp4
from support.quantized_checkpoints import (
    LIMITS,
    TOKENS,
    Pack,
    edit_tensors,
    load,
    logits,
    quantized_checkpoint,
)
from support.tiny_plans import Chunk, step_of

from penstock.backends.registry import backend as named
from penstock.cli.main import main
from penstock.config import EngineConfig
from penstock.engine.loader import load as load_engine
from penstock.engine.loader import plan_engine
from penstock.errors import WeightError
from penstock.interface.executor import run
from penstock.models.quantized_modules import QuantizedModules
from penstock.plan.fuse import fuse
from penstock.plan.lower import lower
from penstock.plan.ops import ExpertLinear, Linear
from penstock.quant import BlockScheme, BlockTensor, Quantization
from penstock.quant.formats import BLOCK_FORMATS
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec

Q = "model.layers.1.self_attn.q_proj"
SKIPPED = ("lm_head", ".gate.")
WIDE = {"hidden_size": 128, "intermediate_size": 256}


@dataclass(frozen=True)
class Case:
    """A kind of checkpoint, and the blocks that its matrices become."""

    config: dict[str, Any]
    pack: Pack
    blocks: tuple[str, ...]
    fields: dict[str, Any] = field(default_factory=dict)
    exact: bool = True
    """Whether values are those of the definition, bit by bit."""


def of_fp8(tile: tuple[int, int]) -> dict[str, Any]:
    return {"quant_method": "fp8", "weight_block_size": list(tile)}


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    own = {"type": "float", "symmetric": True, "strategy": "group", **weights}
    groups = {"group_0": {"targets": ["Linear"], "weights": own}}
    ignored = {"ignore": ["lm_head", "re:.*gate$"]}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": groups,
        **ignored,
    }


def bnb(kind: str, nested: bool) -> dict[str, Any]:
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": kind,
        "bnb_4bit_use_double_quant": nested,
    }


FBGEMM = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}
OPT = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
CASES = {
    "small tiles": Case(of_fp8((32, 64)), fp8((32, 64), "weight_scale_inv", SKIPPED), ("FP8_32",)),
    "DeepSeek's tiles": Case(
        of_fp8((128, 128)), fp8((128, 128), "weight_scale_inv", SKIPPED), ("FP8_128",), WIDE
    ),
    "matrix": Case(
        {"quant_method": "fp8"}, fp8((None, None), "weight_scale", flat=True), ("FP8_128",), WIDE
    ),
    "rows": Case(FBGEMM, fp8((1, None), "weight_scale"), ("FP8_32",)),
    "groups": Case(
        compressed("float-quantized", num_bits=8, group_size=32),
        fp8((1, 32), "weight_scale"),
        ("FP8_32",),
    ),
    "mxfp8": Case(
        compressed("mxfp8-quantized", num_bits=8, group_size=32),
        fp8((1, 32), "weight_scale", SKIPPED, e8m0=True),
        ("MXFP8",),
    ),
    "nvfp4": Case(OPT, nvfp4(16, "weight_scale_2", False, "weight"), ("NVFP4_SCALED",)),
    "nvfp4 divided": Case(
        compressed("nvfp4-pack-quantized", num_bits=4, group_size=16),
        nvfp4(16, "weight_global_scale", True, "weight_packed"),
        ("NVFP4_SCALED",),
        exact=False,
    ),
    "mxfp4": Case(
        compressed("mxfp4-pack-quantized", num_bits=4, group_size=32),
        nvfp4(32, None, False, "weight_packed"),
        ("MXFP4",),
    ),
    "nf4": Case(bnb("nf4", False), four("nf4", skipped=SKIPPED), ("NF4",), WIDE),
    "nested": Case(bnb("nf4", True), four("nf4", True, SKIPPED), ("NF4",), WIDE),
    "fp4": Case(bnb("fp4", True), four("fp4", True, SKIPPED), ("FP4",), WIDE),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def kept(folder: Path, **options: Any) -> Any:
    """The plan of a backend that multiplies by all blocks."""
    spec = load_model_spec(folder)
    assert isinstance(spec.quantized, QuantizedModules)
    spec = replace(spec, quantized=spec.quantized.limited(BLOCK_FORMATS, rounded=False))
    return lower(spec, **options)


def kept_logits(
    folder: Path, backend: str, dtype: Any = "float32", activations: bool = False
) -> np.ndarray:
    plan = fuse(kept(folder, dtype=dtype, quantization=Quantization(activations=activations)))
    executor = named(backend).bind(
        plan, open_weights(folder, plan.spec, plan.weights, dtype), LIMITS
    )
    result: np.ndarray = run(
        executor, step_of([Chunk(TOKENS, 0, 40, [3, 1], rows=range(40))])
    ).logits
    result = result.copy()
    executor.close()
    return result


def assert_kept(case: Case, packed: Path, floats: Path) -> None:
    """Assert that all matrices that are quantized are in blocks, with the values that are meant."""
    plan = kept(packed)
    ours = open_weights(packed, plan.spec, plan.weights)
    plain = lower(load_model_spec(floats))
    theirs = open_weights(floats, plain.spec, plain.weights)
    seen = set()
    for op in plan.ops:
        if not isinstance(op, Linear | ExpertLinear) or op.scheme is None:
            continue
        assert isinstance(op.scheme, BlockScheme)
        assert op.weight_only == (not op.scheme.whole)
        for part in op.parts:
            experts = (
                range(plan.weights[part.weight].shape[0]) if op.kind == "ExpertLinear" else [None]
            )
            for expert in experts:
                value, expected = (
                    w.get(part.weight) if expert is None else w.member(part.weight, expert)
                    for w in (ours, theirs)
                )
                assert isinstance(value, BlockTensor)
                assert value.scheme == op.scheme
                seen.add(value.scheme.format)
                got = value.dequantize()
                if case.exact:
                    np.testing.assert_array_equal(got, expected, err_msg=part.weight)
                np.testing.assert_allclose(got, expected, 1e-6, 1e-12, err_msg=part.weight)
    assert seen == set(case.blocks)


def close(got: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max()


@needs_native
def test_codes_are_what_is_multiplied(tmp_path: Path, case: Case) -> None:
    packed, floats = quantized_checkpoint(tmp_path, case.config, case.pack, **case.fields)
    assert_kept(case, packed, floats)
    expected = logits(floats)
    close(kept_logits(packed, "reference"), expected, 1e-5)
    close(kept_logits(packed, "cpu"), expected, 1e-5)
    close(kept_logits(packed, "cpu", "bfloat16"), expected, 0.06)


@needs_native
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "nvfp4 divided"])
def test_whole_numbers_meet_rounded_activations(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    packed, _ = quantized_checkpoint(tmp_path, case.config, case.pack, **case.fields)
    close(
        kept_logits(packed, "cpu", activations=True),
        kept_logits(packed, "reference", activations=True),
        1e-3,
    )


@needs_native
@pytest.mark.parametrize("family", ["phi3", "mixtral"])
@pytest.mark.parametrize("name", ["small tiles", "DeepSeek's tiles", "nested"])
def test_fused_tensors_and_experts(tmp_path: Path, name: str, family: str) -> None:
    case = CASES[name]
    packed, floats = quantized_checkpoint(
        tmp_path, case.config, case.pack, family=family, **case.fields
    )
    assert_kept(case, packed, floats)
    close(kept_logits(packed, "cpu"), logits(floats), 1e-5)


@needs_native
@pytest.mark.parametrize("name", ["rows", "nf4", "nvfp4"])
def test_rows_of_no_whole_blocks_are_floats(tmp_path: Path, name: str) -> None:
    """As before: 80 columns are no blocks of 32."""
    case = CASES[name]
    fields = WIDE | {"intermediate_size": 80}
    packed, floats = quantized_checkpoint(tmp_path, case.config, case.pack, **fields)
    plan = kept(packed)
    schemes = {op.parts[0].weight: op.scheme for op in plan.ops if isinstance(op, Linear)}
    assert schemes["layers.0.down"] is None
    assert schemes["layers.0.up"] is not None
    close(kept_logits(packed, "cpu"), logits(floats), 1e-5)


def test_parts_of_one_matrix_that_are_not_alike_are_floats(tmp_path: Path) -> None:
    """One weight of the experts is left out."""
    case = CASES["small tiles"]
    config = case.config | {"modules_to_not_convert": ["w3"]}
    pack = fp8((32, 64), "weight_scale_inv", (*SKIPPED, ".w3."))
    packed, floats = quantized_checkpoint(tmp_path, config, pack, family="mixtral")
    np.testing.assert_allclose(
        kept_logits(packed, "reference"), logits(floats), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("in_blocks", [True, False])
def test_codes_that_are_no_numbers(tmp_path: Path, in_blocks: bool) -> None:
    case = CASES["small tiles"]
    packed, _ = quantized_checkpoint(tmp_path, case.config, case.pack)

    def spoilt(codes: np.ndarray) -> np.ndarray:
        codes.view(np.uint8)[-1, -1] = 0xFF
        return codes

    edit_tensors(packed, {f"{Q}.weight": spoilt})
    plan = kept(packed) if in_blocks else lower(load_model_spec(packed))
    weights = open_weights(packed, plan.spec, plan.weights)
    weights.get("layers.0.q")
    with pytest.raises(WeightError, match=rf"{Q}.weight' has codes that are no numbers"):
        weights.get("layers.1.q")


@pytest.mark.parametrize(
    ("name", "tensor", "change", "message"),
    [
        ("small tiles", "weight_scale_inv", lambda x: x * np.float32(np.nan), "not finite"),
        ("small tiles", "weight_scale_inv", lambda x: -x, "negative scales"),
        ("small tiles", "weight_scale_inv", lambda x: x * 0 + np.float32(1e37), "make values"),
        ("mxfp8", "weight_scale", lambda x: np.full(x.shape, 0.3, np.float32), "no powers of two"),
        ("nvfp4", "weight_scale_2", lambda x: np.array(np.inf, x.dtype), "not finite"),
        ("nvfp4 divided", "weight_global_scale", lambda x: x * 0, "no scale but 0"),
        ("nf4", "weight.quant_map", lambda x: x[::-1].copy(), "table .* that is not NF4's"),
        ("nf4", "weight.absmax", lambda x: -x - 1, "not finite or negative"),
        ("mxfp4", "weight_scale", lambda x: x * 0 + np.uint8(255), "not finite"),
    ],
)
def test_damaged_tensors(tmp_path: Path, name: str, tensor: str, change: Any, message: str) -> None:
    case = CASES[name]
    packed, _ = quantized_checkpoint(tmp_path, case.config, case.pack, **case.fields)
    edit_tensors(packed, {f"{Q}.{tensor}": change})
    plan = kept(packed)
    with pytest.raises(WeightError, match=message):
        open_weights(packed, plan.spec, plan.weights).get("layers.1.q")


@needs_native
def test_engines_keep_them_and_say_so(tmp_path: Path, capsys: Any) -> None:
    case = CASES["DeepSeek's tiles"]
    packed, floats = quantized_checkpoint(tmp_path, case.config, case.pack, **case.fields)
    common = ["--max-model-len", "64", "--backend", "cpu"]
    assert main(["explain", str(packed), *common]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "as the checkpoint has them (FP8, FP8 by 128 x 128)" in told
    assert "scheme=FP8_128, weight_only=True" in told
    assert "codes stand for no whole numbers" in told
    assert "read as floats" not in told
    config = EngineConfig(
        model=str(packed), backend="cpu", max_model_len=64, artifact=False, dtype="bfloat16"
    )
    other = structs.replace(config, model=str(floats))
    ours, theirs = (plan_engine(each).config.weight_bytes for each in (config, other))
    assert ours is not None
    assert theirs is not None
    assert ours < 0.75 * theirs


@needs_native
@pytest.mark.parametrize("name", ["DeepSeek's tiles", "nf4", "nvfp4", "mxfp8", "mxfp4"])
def test_weights_at_random(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    packed, _ = quantized_checkpoint(tmp_path, case.config, case.pack, **case.fields)
    config = EngineConfig(
        model=str(packed), backend="cpu", max_model_len=64, load_format="dummy", artifact=False
    )
    executor = load_engine(plan_engine(config), keeping="never")
    got = run(executor, step_of([Chunk(TOKENS, 0, 40, [1, 2], rows=range(40))])).logits.copy()
    executor.close()
    assert np.isfinite(got).all()
    assert 0.05 < got.std() < 50


def test_a_table_in_fewer_bits_is_the_same(tmp_path: Path) -> None:
    case = CASES["nf4"]
    packed, _ = quantized_checkpoint(tmp_path, case.config, case.pack, **case.fields)
    plan = kept(packed)
    expected = open_weights(packed, plan.spec, plan.weights).get("layers.1.q")
    tensors = load(packed)
    tensors[f"{Q}.weight.quant_map"] = tensors[f"{Q}.weight.quant_map"].astype(np.float16)
    save_file(tensors, packed / "model.safetensors")
    got = open_weights(packed, plan.spec, plan.weights).get("layers.1.q")
    assert isinstance(got, BlockTensor)
    assert isinstance(expected, BlockTensor)
    assert np.array_equal(got.blocks, expected.blocks)
    assert json.loads((packed / "config.json").read_text())["quantization_config"]
