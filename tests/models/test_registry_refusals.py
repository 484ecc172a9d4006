"""Configurations that are refused, each with the field and what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest
from support.checkpoints import LLAMA_SHAPED
from support.model_configs import DIMENSIONS, edited

from penstock.errors import ModelError
from penstock.models.families import FAMILIES as READERS
from penstock.models.registry import read_spec


@pytest.mark.parametrize("family", LLAMA_SHAPED)
@pytest.mark.parametrize("value", [1, "x", False, {"a": 1}])
def test_unknown_field(family: str, value: object) -> None:
    with pytest.raises(ModelError, match=r"new_trick .* is not a field Penstock knows"):
        read_spec(edited(family, new_trick=value))


@pytest.mark.parametrize("family", LLAMA_SHAPED)
def test_harmless_fields(family: str) -> None:
    """Notes of tools, nulls, code that is not run, and what says that there is nothing."""
    harmless = {
        "_made_by": {"a": 1},
        "new_trick": None,
        "auto_map": {"AutoModel": "x.py"},
        "num_experts": None,
        "use_mrope": False,
        "attention_probs_dropout_prob": 0.1,
    }
    assert read_spec(edited(family, **harmless)) == read_spec(edited(family))


def test_a_field_that_the_user_says_changes_nothing() -> None:
    config = edited("llama", new_trick=1, rope_scaling={"type": "default", "seed": 3})
    spec = read_spec(config, ignore=["new_trick", "rope_scaling.seed"])
    assert spec.notes == ("config.json: new_trick, rope_scaling.seed ignored, as asked",)
    with pytest.raises(ModelError, match=r"new_trick .*--ignore-config-field new_trick "):
        read_spec(config, ignore=["rope_scaling.seed"])
    with pytest.raises(ModelError, match=r"--ignore-config-field rope_scaling\.seed "):
        read_spec(config, ignore=["new_trick"])


def test_all_unknown_fields_are_named_at_once() -> None:
    with pytest.raises(ModelError) as refused:
        read_spec(edited("llama", new_trick=1, other_trick="x"))
    assert str(refused.value) == (
        "config.json: new_trick (1), other_trick ('x') are not fields Penstock knows here, so they "
        "might change the model's results; if they do not, say so with --ignore-config-field "
        "new_trick --ignore-config-field other_trick (in Python, "
        'ignore_config_field=["new_trick", "other_trick"])'
    )


@pytest.mark.parametrize("name", ["hidden_size", "not_there", "use_cache"])
def test_what_cannot_be_ignored(name: str) -> None:
    with pytest.raises(ModelError, match=f"ignore_config_field {name} is of no use"):
        read_spec(edited("llama"), ignore=[name])


@pytest.mark.parametrize("family", LLAMA_SHAPED)
@pytest.mark.parametrize("name", DIMENSIONS)
@pytest.mark.parametrize("value", [0, -1, 2.0, True, "8", [8], 2**31, float("nan"), 10**400])
def test_bad_dimension(family: str, name: str, value: object) -> None:
    with pytest.raises(ModelError, match=name):
        read_spec(edited(family, **{name: value}))


@pytest.mark.parametrize("family", LLAMA_SHAPED)
@pytest.mark.parametrize("name", [*DIMENSIONS[:5], "max_position_embeddings", "rms_norm_eps"])
def test_required(family: str, name: str) -> None:
    with pytest.raises(ModelError, match=f"{name} .absent. is required"):
        read_spec(edited(family, **{name: ...}))


@pytest.mark.parametrize("family", LLAMA_SHAPED)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "tanh"}, "hidden_act"),
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
                    "high_freq_factor": 3,
                }
            },
            "must be at least low_freq_factor",
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
    "architectures", [None, [], ["BertModel"], ["LlamaModel"], "LlamaForCausalLM", [1]]
)
def test_unknown_architecture(architectures: object) -> None:
    with pytest.raises(ModelError, match="architectures") as caught:
        read_spec(edited("llama", architectures=architectures))
    if isinstance(architectures, list) and 1 not in architectures:
        assert f"docs/models.md lists the {len(READERS)}" in str(caught.value)


def test_what_an_architecture_near_to_others_lacks() -> None:
    with pytest.raises(
        ModelError, match=r"Zamba2ForCausalLM.*is not supported: .*adapters.*; docs"
    ):
        read_spec(edited("llama", architectures=["Zamba2ForCausalLM"], model_type="zamba2"))


def test_several_architectures() -> None:
    with pytest.raises(ModelError, match="must name one"):
        read_spec(edited("llama", architectures=["LlamaForCausalLM", "MistralForCausalLM"]))
