"""Fields that are null: refused by name where transformers refuses them, else as it reads them."""

from __future__ import annotations

from typing import Any

import pytest
from support.families import PUBLISHED, edited
from support.model_configs import CONFIGS

from penstock.errors import ModelError
from penstock.models.registry import read_spec

REFUSED = [
    ("cohere", "attention_bias"),
    ("gemma2", "hidden_activation"),
    ("gemma2", "query_pre_attn_scalar"),
    ("gemma4_text", "num_kv_shared_layers"),
    ("glm4_moe", "n_group"),
    ("gpt_bigcode", "multi_query"),
    ("gpt_neox", "hidden_act"),
    ("gpt_neox", "use_parallel_residual"),
    ("granite", "embedding_multiplier"),
    ("granite", "tie_word_embeddings"),
    ("phi", "qk_layernorm"),
    ("qwen2_moe", "decoder_sparse_step"),
    ("smollm3", "use_sliding_window"),
    ("starcoder2", "use_bias"),
]
"""Families and fields that transformers refuses where they are null."""


@pytest.mark.parametrize(("family", "name"), REFUSED)
def test_a_null_is_not_guessed(family: str, name: str) -> None:
    with pytest.raises(ModelError, match=rf"config.json: {name} \(None\) must not be null; leave"):
        read_spec(edited(family, **{name: None}))


@pytest.mark.parametrize("family", CONFIGS)
def test_an_activation_that_is_null(family: str) -> None:
    with pytest.raises(ModelError, match=r"hidden_act \(None\) must not be null"):
        read_spec(CONFIGS[family] | {"hidden_act": None})


def test_a_null_that_means_what_follows_from_other_fields() -> None:
    assert (
        read_spec(CONFIGS["llama"] | {"num_key_value_heads": None}).layers[0]
        == (read_spec(CONFIGS["llama"] | {"num_key_value_heads": 32}).layers[0])
    )
    for family, name in (("gpt2", "n_inner"), ("falcon", "ffn_hidden_size"), ("jais2", "head_dim")):
        assert read_spec(edited(family, **{name: None})) == read_spec(edited(family, **{name: ...}))
    scaled = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    nulls = dict.fromkeys(("beta_fast", "beta_slow", "mscale", "attention_factor"))
    given = CONFIGS["llama"] | {"rope_scaling": scaled}
    assert read_spec(CONFIGS["llama"] | {"rope_scaling": scaled | nulls}) == read_spec(given)


@pytest.mark.parametrize("family", ["apertus", "cwm"])
def test_families_with_a_rotation_of_their_own(family: str) -> None:
    """It holds where parameters are absent or null; a base beside them would be read by nobody."""
    without: dict[str, Any] = dict.fromkeys(("rope_parameters", "rope_scaling", "rope_theta"), ...)
    own = read_spec(edited(family, **without))
    (rope,) = {layer.attention.rope for layer in own.layers}
    assert rope is not None
    assert rope.kind == "llama3"
    for nulls in ({"rope_parameters": None}, {"rope_scaling": None}, {"rope_theta": rope.theta}):
        assert read_spec(edited(family, **{**without, **nulls})) == own
    message = rf"config.json: rope_theta \(5000.0\) must be {rope.theta}, or stand in rope_param"
    with pytest.raises(ModelError, match=message):
        read_spec(edited(family, **{**without, "rope_theta": 5000.0}))


def test_an_error_about_an_absent_field_says_what_it_means() -> None:
    assert "moe_k" in PUBLISHED["ernie4_5_moe"]
    with pytest.raises(ModelError, match=r"moe_k \(absent, which means 6\) must be from 1 to 4"):
        read_spec(edited("ernie4_5_moe", moe_num_experts=4, moe_k=...))
    with pytest.raises(ModelError, match=r"num_experts_per_tok \(5\) must be from 1 to 4"):
        read_spec(edited("ernie4_5_moe", moe_num_experts=4, moe_k=..., num_experts_per_tok=5))
