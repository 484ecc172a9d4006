"""What published checkpoints say in ``quantization_config``, and which matrices that means."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.checkpoints import tiny_checkpoint
from support.model_configs import edited

from penstock.errors import ModelError
from penstock.models.modules import parts
from penstock.models.registry import read_spec
from penstock.plan.lower import lower

AWQ = {
    "backend": "autoawq", "bits": 4, "do_fuse": False, "exllama_config": None,
    "fuse_max_seq_len": None, "group_size": 128, "modules_to_fuse": None,
    "modules_to_not_convert": None, "quant_method": "awq", "version": "GEMM", "zero_point": True,
}  # fmt: skip
GPTQ_DYNAMIC = {
    "bits": 4, "checkpoint_format": "gptq", "desc_act": False, "group_size": 128,
    "dynamic": {
        r"-:.*mlp\.gate$": {},
        r"+:.*\.0\..*(down|gate|up)_proj": {"bits": 8, "group_size": 64},
        "lm_head": {},
    },
    "lm_head": False, "pack_dtype": "int32", "quant_method": "gptq", "sym": True,
    "meta": {"quantizer": ["gptqmodel:2.2.0"], "damp_percent": 0.01, "mse": 0.0},
}  # fmt: skip
FP8 = {
    "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
    "weight_block_size": [128, 128], "scale_fmt": "ue8m0",
}  # fmt: skip
STATIC_FP8 = {
    "activation_scheme": "static", "dequantize": False, "quant_method": "fp8",
    "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"],
    "weight_block_size": None,
}  # fmt: skip
AUTO_FP8 = {
    "activation_scheme": "static", "ignored_layers": ["lm_head"], "kv_cache_scheme": "static",
    "quant_method": "fp8",
}  # fmt: skip
BNB = {
    "_load_in_4bit": True, "_load_in_8bit": False, "bnb_4bit_compute_dtype": "bfloat16",
    "bnb_4bit_quant_storage": "uint8", "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True, "llm_int8_enable_fp32_cpu_offload": False,
    "llm_int8_has_fp16_weight": False, "llm_int8_threshold": 6.0, "load_in_4bit": True,
    "llm_int8_skip_modules": ["lm_head", "multi_modal_projector", "model.layers.1.mlp"],
    "load_in_8bit": False, "quant_method": "bitsandbytes",
}  # fmt: skip
FP8_WEIGHTS: dict[str, Any] = {
    "actorder": None, "block_structure": None, "dynamic": False, "group_size": None, "num_bits": 8,
    "observer": "minmax", "observer_kwargs": {}, "strategy": "tensor", "symmetric": True,
    "type": "float",
}  # fmt: skip
COMPRESSED_FP8 = {
    "config_groups": {
        "group_0": {
            "input_activations": FP8_WEIGHTS, "output_activations": None, "targets": ["Linear"],
            "weights": FP8_WEIGHTS,
        }
    },
    "format": "float-quantized", "global_compression_ratio": 1.24, "ignore": ["lm_head"],
    "kv_cache_scheme": None, "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
    "sparsity_config": {"format": "dense", "global_sparsity": 0.1, "ignore": [], "targets": []},
}  # fmt: skip
W4A16 = {
    **COMPRESSED_FP8,
    "config_groups": {
        "group_0": {
            "input_activations": None, "output_activations": None, "targets": ["Linear"],
            "weights": {
                **FP8_WEIGHTS, "group_size": 128, "num_bits": 4, "strategy": "group", "type": "int",
                "actorder": "weight",
            },
        }
    },
    "format": "pack-quantized",
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.gate$"],
}  # fmt: skip
OPT = {
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4}}},
    "ignore": ["lm_head", "model.layers.0*"], "quant_algo": "NVFP4",
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "producer": {"name": "modelopt", "version": "0.33.0"}, "quant_method": "modelopt",
}  # fmt: skip


def tiny(family: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((tiny_checkpoint(family) / "config.json").read_text())
    return config


def stored(family: str, config: dict[str, Any]) -> dict[str, str]:
    """The matrices of the first two layers and the head that are quantized, and as what."""
    fields = edited("llama") if family == "llama" else tiny(family)
    spec = read_spec(fields | {"quantization_config": config})
    own = spec.quantized
    assert own is not None
    names = [name for name in lower(spec).weights if name.startswith(("layers.0.", "layers.1."))]
    found = {name: own.matrix(name) for name in [*names, "head"] if not name.endswith("norm")}
    return {name: str(form) for name, form in found.items() if form is not None}


DENSE = [f"layers.{i}.{name}" for i in range(2) for name in "qkvo"] + [
    f"layers.{i}.{name}" for i in range(2) for name in ("gate", "up", "down")
]


@pytest.mark.parametrize(
    ("config", "form"),
    [
        (AWQ, "int4 by 128 with zero points"),
        (FP8, "FP8 by 128 x 128"),
        (STATIC_FP8, "FP8 by matrix"),
        (AUTO_FP8, "FP8 by matrix"),
        (COMPRESSED_FP8, "FP8 by matrix"),
    ],
)
def test_all_matrices_of_layers(config: Any, form: str) -> None:
    assert stored("llama", config) == dict.fromkeys(DENSE, form)


def test_some_matrices_of_layers() -> None:
    found = stored("llama", BNB)
    assert sorted(found) == sorted(set(DENSE) - {f"layers.1.{n}" for n in ("gate", "up", "down")})
    found = stored("llama", OPT)
    assert sorted(found) == sorted(name for name in DENSE if name.startswith("layers.1."))
    found = stored("llama", W4A16)
    assert sorted({name.split(".")[2] for name in found}) == ["down", "gate", "up"]
    found = stored("llama", GPTQ_DYNAMIC)
    assert found["layers.0.down"] == "int8 by 64 with zero points"
    assert found["layers.1.down"] == found["layers.0.q"] == "int4 by 128"


@pytest.mark.parametrize("config", [FP8, W4A16, GPTQ_DYNAMIC])
@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_experts_and_what_chooses_them(family: str, config: Any) -> None:
    found = stored(family, config)
    assert not [name for name in found if name.endswith((".router", ".share"))]
    assert [name for name in found if ".experts." in name]


@given(st.lists(st.text(max_size=12), max_size=3), st.text(max_size=20))
def test_any_list_of_modules_is_read(entries: list[str], module: str) -> None:
    found = module in parts(entries)
    assert found or not any(entry == module for entry in entries)


@given(
    st.dictionaries(
        st.sampled_from(sorted({*W4A16, *AWQ, *FP8, *BNB, *OPT})),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(-2, 300),
            st.text(max_size=5),
            st.lists(st.one_of(st.text(max_size=4), st.integers()), max_size=3),
            st.dictionaries(st.text(max_size=4), st.none(), max_size=2),
        ),
        max_size=4,
    ),
    st.sampled_from([AWQ, GPTQ_DYNAMIC, FP8, BNB, W4A16, OPT]),
)
def test_any_configuration_is_read_or_refused(
    changes: dict[str, Any], base: dict[str, Any]
) -> None:
    with contextlib.suppress(ModelError):
        lower(read_spec(edited("llama", quantization_config=base | changes)))
