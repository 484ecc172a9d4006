"""Configurations of Gemma, Falcon, Phi, GPT-2 and their like: as published, and refused."""

from __future__ import annotations

from typing import Any

import pytest
from support.families import edited

from penstock.errors import ModelError
from penstock.interface.sources import Shifted
from penstock.models.registry import read_spec
from penstock.models.spec import MlpSpec, NormSpec
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
