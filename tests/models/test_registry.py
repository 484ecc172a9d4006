"""Configurations of every family, in both of transformers' styles, and all that is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints import FAMILIES, tiny_checkpoint

from penstock.errors import ModelError
from penstock.models.registry import FAMILIES as READERS
from penstock.models.registry import load_model_spec, read_spec
from penstock.models.spec import ModelSpec, QkNormSpec
from penstock.plan.lower import lower

# As transformers v4 wrote them.
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 3,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 128256,
}
MISTRAL: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 3,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.34.0.dev0",
    "use_cache": True,
    "vocab_size": 32000,
}
QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 2,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 1024,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.1",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3: dict[str, Any] = {
    **QWEN2,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "rope_scaling": None,
    "sliding_window": None,
}
CONFIGS = {"llama": LLAMA, "mistral": MISTRAL, "qwen2": QWEN2, "qwen3": QWEN3}
DIMENSIONS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)


def edited(family: str, **changes: Any) -> dict[str, Any]:
    """A configuration with fields changed, or removed where the change is ``...``."""
    config = {**CONFIGS[family], **changes}
    return {name: value for name, value in config.items() if value is not ...}


def windows(spec: ModelSpec) -> list[int | None]:
    return [layer.attention.window for layer in spec.layers]


def test_llama() -> None:
    spec = read_spec(LLAMA)
    attention, mlp = spec.layers[0].attention, spec.layers[0].mlp
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (32, 8, 128)
    assert attention.scale == 128**-0.5
    assert (attention.rope.kind, attention.rope.theta, attention.rope.factor) == ("llama3", 5e5, 8)
    assert not any((attention.qkv_bias, attention.output_bias, attention.qk_norm, mlp.bias))
    assert (len(spec.layers), mlp.intermediate_size, spec.vocab_size) == (3, 14336, 128256)
    assert (spec.dtype, spec.max_positions, spec.final_norm.eps) == ("bfloat16", 131072, 1e-5)
    assert (spec.bos_token_id, spec.eos_token_ids) == (128000, (128001, 128008, 128009))
    assert windows(spec) == [None] * 3


def test_llama_defaults() -> None:
    """First Llamas name neither KV heads nor theta."""
    spec = read_spec(edited("llama", num_key_value_heads=..., rope_theta=..., rope_scaling=None))
    attention = spec.layers[0].attention
    assert (attention.num_kv_heads, attention.rope.theta, attention.rope.kind) == (
        32,
        10000.0,
        "default",
    )


def test_llama_biases() -> None:
    spec = read_spec(edited("llama", attention_bias=True, mlp_bias=True))
    layer = spec.layers[0]
    assert layer.attention.qkv_bias
    assert layer.attention.output_bias
    assert layer.mlp.bias


def test_mistral_window() -> None:
    assert windows(read_spec(MISTRAL)) == [4096] * 3
    assert windows(read_spec(edited("mistral", sliding_window=None))) == [None] * 3
    assert windows(read_spec(edited("mistral", layer_types=["sliding_attention"] * 3)))


def test_qwen2() -> None:
    spec = read_spec(QWEN2)
    attention = spec.layers[0].attention
    assert (attention.qkv_bias, attention.output_bias, attention.head_dim) == (True, False, 64)
    assert spec.tie_embeddings
    assert "head" not in lower(spec).weights


def test_qwen3() -> None:
    attention = read_spec(QWEN3).layers[0].attention
    assert attention.qk_norm == QkNormSpec(1e-06)
    assert (attention.qkv_bias, attention.head_dim) == (False, 128)


def test_qwen_windows() -> None:
    assert windows(read_spec(QWEN2)) == [None] * 3
    on = {"use_sliding_window": True, "sliding_window": 1024}
    assert windows(read_spec(edited("qwen2", **on))) == [None, None, 1024]
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    assert windows(read_spec(edited("qwen3", **on, layer_types=types))) == [1024, None, 1024]


@pytest.mark.parametrize("family", FAMILIES)
def test_both_styles_mean_the_same(family: str) -> None:
    old = edited(family, rope_theta=70000.0, rope_scaling={"type": "linear", "factor": 2.0})
    new = edited(
        family,
        rope_theta=...,
        rope_scaling=...,
        torch_dtype=...,
        dtype="bfloat16",
        rope_parameters={"rope_type": "linear", "factor": 2, "rope_theta": 70000.0},
    )
    assert read_spec(old) == read_spec(new)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_transformers_saves_is_read(family: str) -> None:
    spec = load_model_spec(tiny_checkpoint(family))
    assert spec.architecture == CONFIGS[family]["architectures"][0]
    assert spec.max_positions == 256


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_window_layers_are_derived_as_transformers_derives_them(family: str, first: int) -> None:
    """v5 saves the ``layer_types`` it derived; v4 saved only ``max_window_layers``."""
    folder = tiny_checkpoint(
        family,
        num_hidden_layers=3,
        use_sliding_window=True,
        sliding_window=9,
        max_window_layers=first,
    )
    config = json.loads((folder / "config.json").read_text())
    derived = config.pop("layer_types")
    expected = [9 if kind == "sliding_attention" else None for kind in derived]
    assert expected.count(9) == 3 - first
    assert windows(read_spec(config)) == expected


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("value", [1, "x", False, {"a": 1}])
def test_unknown_field(family: str, value: object) -> None:
    with pytest.raises(ModelError, match=r"new_trick .* is not a field Penstock knows"):
        read_spec(edited(family, new_trick=value))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", DIMENSIONS)
@pytest.mark.parametrize("value", [0, -1, 2.0, True, "8", [8], 2**31, float("nan"), 10**400])
def test_bad_dimension(family: str, name: str, value: object) -> None:
    with pytest.raises(ModelError, match=name):
        read_spec(edited(family, **{name: value}))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", [*DIMENSIONS[:5], "max_position_embeddings", "rms_norm_eps"])
def test_required(family: str, name: str) -> None:
    with pytest.raises(ModelError, match=f"{name} .absent. is required"):
        read_spec(edited(family, **{name: ...}))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "relu2"}, "hidden_act"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"rope_theta": -1.0}, "rope_theta"),
        ({"pretraining_tp": 2}, "pretraining_tp"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"torch_dtype": "float64"}, "torch_dtype"),
        ({"torch_dtype": "float16", "dtype": "bfloat16"}, "contradicts torch_dtype"),
        ({"torch_dtype": None}, "dtype .* is required"),
        ({"num_key_value_heads": 5}, "multiple of the 5 KV heads"),
        ({"head_dim": 15}, "head_dim .* must be even"),
        ({"eos_token_id": -1}, "eos_token_id"),
        ({"eos_token_id": 10**9}, "eos_token_id"),
        ({"eos_token_id": [1, "2"]}, "eos_token_id"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 3}, "layer_types"),
        ({"model_type": "gpt2"}, "model_type"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"auto_map": {"AutoModel": "x.py"}}, "auto_map"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers"),
        ({"rope_scaling": {"type": "longrope"}}, "longrope"),
        ({"rope_scaling": {"rope_type": "mrope", "mrope_section": [1, 2]}}, "mrope"),
        ({"rope_scaling": {"type": "yarn", "rope_type": "linear"}}, "contradicts rope_type"),
        ({"rope_scaling": {"type": "linear"}}, "factor .absent. is required"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 2, "new": 1}}, "new"),
        ({"rope_scaling": {"type": "dynamic", "factor": 0.5}}, "factor"),
        (
            {
                "rope_scaling": {
                    "type": "dynamic",
                    "factor": 2,
                    "original_max_position_embeddings": 7,
                }
            },
            "original_max_position_embeddings",
        ),
        (
            {
                "rope_scaling": {
                    "type": "llama3",
                    "factor": 2,
                    "low_freq_factor": 4,
                    "high_freq_factor": 4,
                }
            },
            "must exceed low_freq_factor",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": 0.5}}, "beta_slow"),
        ({"rope_scaling": {"type": "linear", "factor": 2, "rope_theta": 7.0}}, "contradicts"),
        ({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {}}, "only one"),
        ({"rope_parameters": {"full_attention": {}}, "rope_scaling": None}, "full_attention"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}, "rope_scaling": None}, "partial"),
        ({"rope_scaling": "linear"}, "must be an object"),
    ],
)
def test_refused(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        read_spec(edited(family, **changes), where="folder/config.json")
    assert "folder/config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("llama", {"sliding_window": 4096}, "sliding_window"),
        ("llama", {"layer_types": ["sliding_attention"] * 3}, "layer_types"),
        ("llama", {"hidden_size": 4100}, "no head_dim is given"),
        ("mistral", {"sliding_window": ...}, "sliding_window .absent. is required"),
        ("mistral", {"sliding_window": 0}, "sliding_window"),
        ("mistral", {"attention_bias": True}, "attention_bias"),
        ("mistral", {"num_key_value_heads": None}, "num_key_value_heads"),
        ("qwen2", {"mlp_bias": True}, "mlp_bias"),
        ("qwen2", {"attention_bias": False}, "attention_bias"),
        ("qwen2", {"use_mrope": True}, "use_mrope"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": None}, "sliding_window"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": ...}, "max_window_layers"),
        ("qwen3", {"head_dim": None}, "head_dim"),
        ("qwen3", {"head_dim": ...}, "head_dim"),
        (
            "qwen3",
            {"layer_types": ["sliding_attention"] * 3},
            "use_sliding_window is false",
        ),
    ],
)
def test_refused_by_family(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(edited(family, **changes))


@pytest.mark.parametrize(
    "architectures", [None, [], ["GPT2LMHeadModel"], ["LlamaModel"], "LlamaForCausalLM", [1]]
)
def test_unknown_architecture(architectures: object) -> None:
    with pytest.raises(ModelError, match="architectures") as caught:
        read_spec(edited("llama", architectures=architectures))
    if isinstance(architectures, list) and 1 not in architectures:
        assert all(name in str(caught.value) for name in READERS)


def test_several_architectures() -> None:
    with pytest.raises(ModelError, match="must name one"):
        read_spec(edited("llama", architectures=["LlamaForCausalLM", "MistralForCausalLM"]))


def test_generation_config_adds_ends() -> None:
    merged = read_spec(QWEN2, generation={"eos_token_id": [151645, 151643], "top_p": 0.8})
    assert merged.eos_token_ids == (151645, 151643)
    with pytest.raises(ModelError, match=r"generation_config\.json: eos_token_id"):
        read_spec(QWEN2, generation={"eos_token_id": "</s>"})


def write(folder: Path, text: str, name: str = "config.json") -> Path:
    (folder / name).write_text(text)
    return folder


def test_load_model_spec(tmp_path: Path) -> None:
    write(tmp_path, json.dumps(QWEN2))
    assert load_model_spec(tmp_path).eos_token_ids == (151645,)
    write(tmp_path, json.dumps({"eos_token_id": [151643]}), "generation_config.json")
    assert load_model_spec(tmp_path).eos_token_ids == (151645, 151643)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"a": NaN}', '{"a": 1, "a": 2}', "[" * 100_000, "\xff"]
)
def test_load_bad_json(tmp_path: Path, text: str) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        load_model_spec(write(tmp_path, text))


def test_load_without_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load_model_spec(tmp_path)


def test_dtype_from_the_weights_where_unnamed(tmp_path: Path) -> None:
    source = tiny_checkpoint("llama", dtype="float16")
    config = json.loads((source / "config.json").read_text())
    del config["dtype"]
    write(tmp_path, json.dumps(config))
    with pytest.raises(ModelError, match=r"dtype .absent. is required"):
        load_model_spec(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    assert load_model_spec(tmp_path).dtype == "float16"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
FIELDS = sorted({name for config in CONFIGS.values() for name in config} | {"rope_parameters"})


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(FAMILIES), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3))
def test_any_value_is_read_or_refused(family: str, changes: dict[str, Any]) -> None:
    try:
        spec = read_spec({**CONFIGS[family], **changes})
    except ModelError:
        return
    assert lower(spec).weights
