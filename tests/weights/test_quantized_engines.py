"""Engines with checkpoints that are quantized: which options they take, and what they tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.needs import needs_native
from support.packed_floats import fp8
from support.packed_integers import ints
from support.quantized_checkpoints import TOKENS, quantized_checkpoint
from support.tiny_plans import Chunk, step_of

from penstock.cli.main import main
from penstock.config import EngineConfig
from penstock.engine.loader import load, plan_engine
from penstock.errors import ConfigError
from penstock.interface.executor import run

FP8: dict[str, Any] = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 64],
    "kv_cache_scheme": "static",
}
MIXED: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "ignore": ["lm_head"],
    "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    "config_groups": {
        "a": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "strategy": "group", "group_size": 32},
        },
        "b": {
            "targets": ["re:.*down_proj"],
            "weights": {"num_bits": 8, "strategy": "channel"},
        },
    },
}


def mixed(generator: np.random.Generator, module: str, n: int, k: int) -> Any:
    form = ints(8, "row") if "down_proj" in module else ints()
    return form(generator, module, n, k)


def explained(capsys: Any, folder: Path, *options: str) -> str:
    assert main(["explain", str(folder), "--no-plan", "--max-model-len", "64", *options]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_what_becomes_floats_is_told(tmp_path: Path, capsys: Any) -> None:
    odd = FP8 | {"weight_block_size": [32, 48]}
    packed, _ = quantized_checkpoint(tmp_path, odd, fp8((32, 48), "weight_scale_inv"))
    common = "matrices that the checkpoint has in FP8 by 32 x 48 are"
    told = explained(capsys, packed, "--backend", "reference", "--dtype", "bfloat16")
    assert f"{common} kept in bfloat16" in told
    common, kept = common.replace("48", "64"), tmp_path / "kept"
    packed, _ = quantized_checkpoint(kept, FP8, fp8((32, 64), "weight_scale_inv"))
    told = explained(capsys, packed, "--backend", "reference", "--dtype", "bfloat16")
    assert "as the checkpoint has them (FP8, FP8 by 32 x 64)" in told
    assert common not in told
    told = explained(capsys, packed, "--backend", "reference", "--quantization", "int8")
    assert f"{common} rounded once more, to int8" in told


@needs_native
def test_floats_may_be_rounded_once_more(tmp_path: Path) -> None:
    packed, floats = quantized_checkpoint(tmp_path, FP8, fp8((32, 64), "weight_scale_inv"))
    step = step_of([Chunk(TOKENS, 0, 40, [1, 2], rows=range(40))])
    results = []
    for folder in (packed, floats):
        config = EngineConfig(
            model=str(folder), backend="cpu", max_model_len=64, quantization="int4"
        )
        executor = load(plan_engine(config), keeping="never")
        results.append(run(executor, step).logits.copy())
        executor.close()
    np.testing.assert_array_equal(results[0], results[1])


def test_options_of_what_is_not_quantized(tmp_path: Path) -> None:
    packed, _ = quantized_checkpoint(tmp_path, FP8, fp8((32, 64), "weight_scale_inv"))
    config = EngineConfig(model=str(packed), max_model_len=64, quantize_activations=True)
    with pytest.raises(ConfigError, match="quantize_activations has no effect"):
        plan_engine(config)


def test_several_schemes_are_not_rounded_once_more(tmp_path: Path, capsys: Any) -> None:
    packed, _ = quantized_checkpoint(tmp_path, MIXED, mixed)
    config = EngineConfig(model=str(packed), max_model_len=64, quantization="int8")
    with pytest.raises(ConfigError, match=r"quantized already .*int4 by 32.*quantization int8"):
        plan_engine(config)
    told = explained(capsys, packed, "--backend", "reference")
    assert "scales for a KV cache in FP8, which are not used" in told
    assert "int8 by row with zero points, int4 by 32" in told
