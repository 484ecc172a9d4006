"""Configurations of every family, in both of transformers' styles, and all that is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints import LLAMA_SHAPED, tiny_checkpoint
from support.model_configs import CONFIGS, LLAMA, MISTRAL, QWEN2, QWEN3, edited

from penstock.errors import ModelError
from penstock.models.registry import read_spec
from penstock.models.spec import ModelSpec, QkNormSpec
from penstock.plan.lower import lower
from penstock.sampling.defaults import SamplingDefaults
from penstock.weights.model_folder import load_model_spec


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


def test_llama_is_served_up_to_the_length_that_its_scaling_is_for() -> None:
    scaled = {"rope_scaling": {"type": "linear", "factor": 4.0}, "max_position_embeddings": 4096}
    assert read_spec(edited("llama", **scaled, max_sequence_length=16384)).max_positions == 16384
    assert read_spec(edited("llama", **scaled, max_sequence_length=2048)).max_positions == 4096


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


@pytest.mark.parametrize("family", LLAMA_SHAPED)
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


@pytest.mark.parametrize("family", LLAMA_SHAPED)
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
@given(st.sampled_from(LLAMA_SHAPED), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3))
def test_any_value_is_read_or_refused(family: str, changes: dict[str, Any]) -> None:
    try:
        spec = read_spec({**CONFIGS[family], **changes})
    except ModelError:
        return
    assert lower(spec).weights


def test_sampling_defaults() -> None:
    generation = {"temperature": 0.6, "top_k": 20, "max_new_tokens": 64, "do_sample": True}
    found = read_spec(edited("llama"), generation=generation).sampling_defaults
    assert found == SamplingDefaults(temperature=0.6, top_k=20, max_tokens=64)
    params = found.params(remaining := 40)
    assert (params.temperature, params.top_k, params.max_tokens) == (0.6, 20, remaining)


@pytest.mark.parametrize(
    "wrong", [{"top_p": 0.0}, {"temperature": "hot"}, {"top_k": 1.5}, {"max_new_tokens": 0}]
)
def test_sampling_defaults_that_no_request_may_have(wrong: dict[str, Any]) -> None:
    """They stop a start only where they would be applied."""
    (field,) = wrong
    with pytest.raises(
        ModelError, match=rf"generation_config\.json: {field} .*generation_config to"
    ):
        read_spec(edited("llama"), generation=wrong)
    spec = read_spec(edited("llama"), generation=wrong, sampling_defaults=False)
    assert spec.sampling_defaults == SamplingDefaults()
