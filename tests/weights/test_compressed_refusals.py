"""Checkpoints in compressed-tensors' formats that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.compressed_configs import FLOAT, INT, PACK, config, floats, group, integers
from support.packed_integers import ints
from support.quantized_checkpoints import (
    edit_tensors,
    quantized_checkpoint,
)

from penstock.errors import ModelError, WeightError
from penstock.plan.lower import lower
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec

Q = "model.layers.1.self_attn.q_proj"
STATIC = {"num_bits": 8, "type": "int", "dynamic": False, "strategy": "tensor"}
W4 = integers(4, "group", 32)
SPARSE = {"format": "sparse-24-bitmask", "targets": ["Linear"], "ignore": ["lm_head"]}


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (config("marlin-24", group(W4)), "'marlin-24' is not supported; supported are pack"),
        (config("dense", group(W4)), "'dense' is not supported"),
        (config("mixed-precision", group(W4)), "format .* is required beside mixed-precision"),
        (config(PACK), "config_groups .* must have a group"),
        (config(PACK, group(W4, "Conv1d")), "targets .* has 'Conv1d'"),
        (config(PACK, group(W4, "re:(")), "'[(]', which is no regular expression"),
        (config(PACK, group(W4), ignore=["re:["]), "ignore .*no regular expression"),
        (config(PACK, group(W4 | {"num_bits": 5})), "num_bits .5. is not supported"),
        (config(PACK, group(W4 | {"group_size": None})), "group with a group_size"),
        (config(PACK, group(W4 | {"type": "float"})), "num_bits .4. is not supported with type"),
        (config(FLOAT, group(W4)), "format 'float-quantized'"),
        (config(FLOAT, group(floats(8, "tensor", symmetric=False))), "symmetric .False. must"),
        (config(FLOAT, group(floats(8, "block"))), "block with its structure"),
        (config(FLOAT, group(floats(8, "block", block_structure=[1]))), "must be two integers"),
        (config(PACK, group(integers(8, "group", 16))), "group_size .16. is not supported"),
        (config(PACK, group(W4 | {"dynamic": True})), "dynamic .True. must be false"),
        (config(PACK, group(W4, output_activations=STATIC)), "output_activations .*not supported"),
        (config(PACK, group(W4), transform_config={"a": 1}), "transform_config .*not supported"),
        (
            config(PACK, group(W4), sparsity_config={"format": "sparse-bitmask"}),
            "sparsity_config .*not supported",
        ),
        (
            config(PACK, group(W4), sparsity_config={"format": "sparse-24-bitmask"}),
            "targets .* supported beside quantized matrices only where",
        ),
        (
            config(PACK, group(W4), sparsity_config=SPARSE),
            "format .* is supported with floats, and with integers of 8 bits, not with int4 by 32",
        ),
        (config(PACK, group(W4), kv_cache_scheme="fp8"), "kv_cache_scheme .*must be an object"),
        (config(PACK, group(W4), kv_cache_scheme={"num_bits": 4}), "num_bits .4. is not supported"),
        (config(PACK, group(W4), kv_cache_scheme={"type": "log"}), "not supported with type 'log'"),
        (config(PACK, group(W4), kv_cache_scheme={"rank": 2}), "rank .2. is not a field"),
        (
            config(PACK, group(W4), quantization_status="calibration"),
            "must be compressed or frozen",
        ),
        (config(PACK, group(W4), quantization_status=7), "quantization_status .7. must be"),
        (config(PACK, group(W4), rotations=1), "rotations .1. is not a field Penstock knows"),
        (config(PACK, group(W4 | {"rank": 2})), "rank .2. is not a field Penstock knows"),
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, own: Any, message: str) -> None:
    packed, _ = quantized_checkpoint(tmp_path, own, ints())
    with pytest.raises(ModelError, match=message):
        load_model_spec(packed)


def test_a_module_of_two_groups(tmp_path: Path) -> None:
    own = config(PACK, group(W4, "re:.*mlp.*"), group(integers(8, "channel"), "re:.*gate_proj"))
    packed, _ = quantized_checkpoint(tmp_path, own, ints())
    with pytest.raises(ModelError, match=r"mlp.gate_proj in .* a module must be in one group"):
        lower(load_model_spec(packed))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("weight_packed", None, f"lacks tensor '{Q}.weight_packed'.*incomplete"),
        ("weight_scale", None, f"lacks tensor '{Q}.weight_scale'.*incomplete"),
        ("weight_zero_point", None, f"lacks tensor '{Q}.weight_zero_point'.*incomplete"),
        ("weight_g_idx", None, f"lacks tensor '{Q}.weight_g_idx'.*incomplete"),
        ("weight_g_idx", lambda x: x * 0, "does not give every group 32 columns"),
        ("weight_scale", lambda x: x * 0, "no scale but 0"),
        ("weight_scale", lambda x: -x, "negative scales"),
        ("weight_scale", lambda x: x * np.nan, "not finite"),
        (
            "weight_shape",
            lambda x: x[::-1] * 2,
            r"says that the matrix is \[128, 128\].*\[64, 64\]",
        ),
        ("weight_scale", lambda x: x[:, :1].copy(), r"shape \[64, 1\].*asks for \[64, 2\]"),
        ("weight_packed", lambda x: x.astype(np.int64), "stored as I64.*packed codes in I32"),
        ("bias", lambda x: x, "have no place in the model"),
    ],
)
def test_damaged_tensors(tmp_path: Path, name: str, change: Any, message: str) -> None:
    weights = integers(4, "group", 32, symmetric=False, actorder="group")
    pack = ints(symmetric=False, order=True)
    extra = {f"{Q}.bias": np.ones(64, np.float32)} if name == "bias" else None
    packed, _ = quantized_checkpoint(tmp_path, config(PACK, group(weights)), pack, extra=extra)
    edit_tensors(packed, {f"{Q}.{name}": change})
    spec = load_model_spec(packed)
    with pytest.raises(WeightError, match=message):
        open_weights(packed, spec, lower(spec).weights).get("layers.1.q")


def test_codes_of_more_bits_than_are_said(tmp_path: Path) -> None:
    pack = ints(8, "row", packed=False)
    packed, _ = quantized_checkpoint(tmp_path, config(INT, group(integers(4, "channel"))), pack)
    spec = load_model_spec(packed)
    with pytest.raises(WeightError, match=r"codes from -128 to 127.*num_bits is 4"):
        open_weights(packed, spec, lower(spec).weights).get("layers.1.q")
