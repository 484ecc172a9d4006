"""Configurations of Gemma, Falcon, Phi, GPT-2 and their like: as published, and refused."""

from __future__ import annotations

from typing import Any

import pytest
from support.families import edited
from support.families.falcon import FALCON_11B

from penstock.errors import ModelError
from penstock.interface.sources import RowsOf, Shifted, Stored
from penstock.models.registry import read_spec
from penstock.models.spec import MlpSpec, NormSpec, RopeSpec
from penstock.plan.lower import lower


@pytest.mark.parametrize("family", ["gemma", "gemma2"])
def test_gemma_norms_are_stored_less_1(family: str) -> None:
    weights = lower(read_spec(edited(family)), max_positions=64).weights
    shifted = {name for name, w in weights.items() if isinstance(w.source, Shifted)}
    assert shifted == {name for name in weights if name.endswith("norm")}


def test_gemma() -> None:
    """``gelu`` meant its approximation; most of what Gemma's layers are may be left unsaid."""
    spec = read_spec(edited("gemma"))
    assert (spec.tie_embeddings, spec.layers[0].attention.scale) == (True, 1 / 16)
    for silent in ("head_dim", "hidden_act", "rope_theta", "attention_bias"):
        assert read_spec(edited("gemma", **{silent: ...})) == spec
    named = read_spec(edited("gemma", hidden_activation="gelu_pytorch_tanh"))
    assert named == spec
    assert isinstance(named.layers[0].mlp, MlpSpec)
    assert named.layers[0].mlp.activation == "gelu_tanh"


def test_gemma2() -> None:
    spec = read_spec(edited("gemma2"))
    attention = spec.layers[0].attention
    assert [layer.attention.window for layer in spec.layers] == [4096, None, 4096, None, 4096]
    assert (attention.scale, attention.softcap, spec.logits_softcap) == (224**-0.5, 50.0, 30.0)
    fields = ("attn_logit_softcapping", "final_logit_softcapping", "sliding_window", "head_dim")
    assert read_spec(edited("gemma2", **dict.fromkeys(fields, ...))) == spec
    uncapped = read_spec(edited("gemma2", **dict.fromkeys(fields[:2])))
    assert (uncapped.layers[0].attention.softcap, uncapped.logits_softcap) == (None, None)
    assert (
        read_spec(edited("gemma2", query_pre_attn_scalar=...)).layers[0].attention.scale == 1 / 16
    )


def test_phi() -> None:
    spec = read_spec(edited("phi"))
    layer, rope = spec.layers[0], spec.layers[0].attention.rope
    assert (layer.parallel, layer.mlp_norm, spec.head_bias) == (True, None, True)
    assert rope == RopeSpec(1e4, 32)
    assert layer.attention.num_kv_heads == 32
    weights = lower(spec).weights
    assert weights["head.bias"].source == Stored("lm_head.bias", (51200,))
    assert weights["layers.1.down.bias"].source == Stored("model.layers.1.mlp.fc2.bias", (2560,))
    half = read_spec(edited("phi", partial_rotary_factor=...)).layers[0].attention.rope
    assert half == RopeSpec(1e4, 40)
    for silent in ("hidden_act", "layer_norm_eps", "rope_theta", "tie_word_embeddings"):
        assert read_spec(edited("phi", **{silent: ...})) == spec


def test_starcoder2() -> None:
    spec = read_spec(edited("starcoder2"))
    layer = spec.layers[0]
    assert layer.attn_norm == NormSpec(1e-5, "layer", bias=True)
    assert layer.mlp == MlpSpec(12288, "gelu_tanh", bias=True, gated=False)
    assert (layer.attention.window, layer.attention.qkv_bias, spec.tie_embeddings) == (
        4096,
        True,
        True,
    )
    for silent in ("use_bias", "hidden_act", "norm_epsilon", "num_key_value_heads"):
        assert read_spec(edited("starcoder2", **{silent: ...})) == spec


def test_falcon_7b() -> None:
    spec = read_spec(edited("falcon"))
    layer = spec.layers[0]
    assert (layer.parallel, layer.mlp_norm, layer.attn_norm) == (
        True,
        None,
        NormSpec(1e-5, "layer", True),
    )
    assert (layer.attention.num_kv_heads, spec.max_positions, spec.tie_embeddings) == (
        1,
        2048,
        True,
    )
    assert layer.mlp == MlpSpec(4 * 4544, "gelu", gated=False)
    stored = Stored("transformer.h.1.self_attention.query_key_value.weight", (73 * 64, 4544))
    weights = lower(spec).weights
    assert weights["layers.1.k"].source == RowsOf(stored, ((4544, 4608),))
    assert read_spec(edited("falcon", num_kv_heads=71)) == spec
    assert read_spec(edited("falcon", hidden_size=..., n_embed=4544)) == spec


def test_falcon_40b_and_11b() -> None:
    """Rows of queries, keys and values by KV head; one or two norms."""
    spec = read_spec(FALCON_11B)
    assert (spec.layers[0].mlp_norm, spec.tie_embeddings) == (None, False)
    stored = Stored("transformer.h.0.self_attention.query_key_value.weight", (48 * 128, 4096))
    runs = tuple((768 * i + 512, 768 * i + 640) for i in range(8))
    weights = lower(spec).weights
    assert weights["layers.0.k"].source == RowsOf(stored, runs)
    assert weights["layers.0.attn_norm"].source == Stored(
        "transformer.h.0.input_layernorm.weight", (4096,)
    )
    two = read_spec({**FALCON_11B, "num_ln_in_parallel_attn": None})
    assert two.layers[0].mlp_norm == NormSpec(1e-5, "layer", bias=True)
    weights = lower(two).weights
    assert weights["layers.0.attn_norm"].source == Stored("transformer.h.0.ln_attn.weight", (4096,))
    assert weights["layers.0.mlp_norm"].source == Stored("transformer.h.0.ln_mlp.weight", (4096,))


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("gemma", {"use_bidirectional_attention": True}, "only causal"),
        ("gemma", {"hidden_activation": "silu"}, "contradicts hidden_act"),
        ("gemma", {"hidden_act": "tanh"}, "hidden_act .* is not supported"),
        ("gemma", {"sliding_window": 5}, "not a field Penstock knows"),
        ("gemma", {"num_key_value_heads": ...}, "num_key_value_heads .* is required"),
        ("gemma2", {"use_bidirectional_attention": True}, "only causal"),
        ("gemma2", {"sliding_window_size": 1024}, "contradicts sliding_window 4096"),
        ("gemma2", {"hidden_act": "silu"}, "contradicts hidden_activation"),
        ("gemma2", {"attn_logit_softcapping": -1.0}, "must be greater than 0"),
        ("gemma2", {"final_logit_softcapping": 0}, "must be greater than 0"),
        ("gemma2", {"layer_types": ["full_attention"] * 3}, "must be 5 times"),
        ("gemma2", {"rope_local_base_freq": 10000}, "not a field Penstock knows"),
        ("falcon", {"parallel_attn": False, "new_decoder_architecture": True}, "must be true with"),
        ("falcon", {"num_ln_in_parallel_attn": 2}, "needs new_decoder_architecture"),
        ("falcon", {"num_ln_in_parallel_attn": 3}, "from 1 to 2"),
        ("falcon", {"apply_residual_connection_post_layernorm": True}, "must be false"),
        ("falcon", {"multi_query": False, "num_kv_heads": 1}, "must be the 71 heads"),
        ("falcon", {"ff_factor": 2, "ffn_hidden_size": 9}, "contradicts ffn_hidden_size 9"),
        ("falcon", {"n_embed": 5}, "n_embed .5. contradicts hidden_size 4544"),
        ("falcon", {"activation": "relu6"}, "activation .* is not supported"),
        ("falcon", {"auto_map": {"AutoModel": "modeling_mine.Mine"}}, "does not run"),
        ("phi", {"partial_rotary_factor": 0.01}, "rotate in pairs"),
        ("phi", {"num_key_value_heads": 5}, "multiple of the 5 KV heads"),
        ("phi", {"lm_head_bias": False}, "not a field Penstock knows"),
        ("starcoder2", {"norm_type": "rms_norm"}, "must be layer_norm"),
        ("starcoder2", {"mlp_type": "gated"}, "must be default"),
        ("starcoder2", {"scale_attn_weights": False}, "must be true"),
        ("starcoder2", {"norm_epsilon": 0}, "norm_epsilon"),
        ("starcoder2", {"layer_types": ["full_attention"] * 3}, "must be 'sliding_attention'"),
    ],
)
def test_refused(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(edited(family, **changes))
