"""Configurations of families whose layers keep states: as published, and refused."""

from __future__ import annotations

from typing import Any

import pytest
from support.families import edited
from support.families.qwen3_5_text import PUBLISHED

from penstock.errors import ModelError
from penstock.models.registry import read_spec
from penstock.models.spec import (
    AttentionSpec,
    ExpertsSpec,
    GatedDeltaSpec,
    MlpSpec,
    QkNormSpec,
    RopeSpec,
    Routing,
    SharedExpertSpec,
)

NET = GatedDeltaSpec(16, 32, key_dim=128, value_dim=128, kernel=4, eps=1e-6)


def test_qwen3_next() -> None:
    spec = read_spec(edited("qwen3_next"))
    assert [layer.mixer for layer in spec.layers[:3]] == [NET] * 3
    attention = AttentionSpec(
        16, 2, 256, RopeSpec(1e7, 64), 1 / 16, qk_norm=QkNormSpec(1e-6), output_gate=True
    )
    assert spec.layers[3].mixer == attention
    experts = ExpertsSpec(512, 10, 512, shared=SharedExpertSpec(512, gated=True))
    assert {layer.mlp for layer in spec.layers} == {experts}
    assert experts.routing == Routing(normalize=True)
    assert (spec.dtype, spec.tie_embeddings, spec.max_positions) == ("bfloat16", False, 262144)
    silent = [name for name in edited("qwen3_next") if name.startswith("linear_")]
    silent += ["full_attention_interval", "head_dim", "partial_rotary_factor", "num_experts"]
    assert read_spec(edited("qwen3_next", **dict.fromkeys(silent, ...))).layers == spec.layers


def test_qwen3_next_with_layers_of_other_kinds() -> None:
    changes = {"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    spec = read_spec(edited("qwen3_next", full_attention_interval=2, **changes))
    assert [layer.mixer == NET for layer in spec.layers] == [True, False] * 3
    mixtures = [isinstance(layer.mlp, ExpertsSpec) for layer in spec.layers]
    assert mixtures == [False, True, False, False, False, True]
    assert spec.layers[0].mlp == MlpSpec(5120)
    kinds = ["full_attention", "linear_attention", "linear_attention", "linear_attention"]
    spec = read_spec(edited("qwen3_next", layer_types=kinds))
    assert [layer.mixer == NET for layer in spec.layers] == [False, True, True, True]
    dense = read_spec(edited("qwen3_next", num_experts=0))
    assert {layer.mlp for layer in dense.layers} == {MlpSpec(5120)}


@pytest.mark.parametrize("part", [False, True], ids=["alone", "beside eyes"])
def test_qwen3_5(part: bool) -> None:
    config: dict[str, Any] = dict(PUBLISHED)
    if part:
        config = {
            "architectures": ["Qwen3_5ForConditionalGeneration"],
            "image_token_id": 248056,
            "model_type": "qwen3_5",
            "text_config": {k: v for k, v in PUBLISHED.items() if k != "architectures"},
            "tie_word_embeddings": False,
            "video_token_id": 248057,
            "vision_config": {"depth": 27},
            "vision_end_token_id": 248054,
            "vision_start_token_id": 248053,
        }
    spec = read_spec(config)
    assert [layer.mixer for layer in spec.layers[:3]] == [NET] * 3
    attention = spec.layers[3].attention
    assert (attention.num_kv_heads, attention.rope) == (4, RopeSpec(1e7, 64))
    assert attention.output_gate
    assert {layer.mlp for layer in spec.layers} == {MlpSpec(12288)}


def test_qwen3_5_moe() -> None:
    spec = read_spec(edited("qwen3_5_moe_text"))
    experts = ExpertsSpec(
        256, 8, 512, routing=Routing(normalize=True), shared=SharedExpertSpec(512, gated=True)
    )
    assert {layer.mlp for layer in spec.layers} == {experts}
    assert spec.layers[0].mixer == NET
    assert spec.layers[3].attention.num_kv_heads == 2


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("qwen3_next", {"layer_types": ["full_attention"] * 3}, "must be 4 times"),
        ("qwen3_next", {"layer_types": ["mamba"] * 4}, "must be 4 times 'linear_attention' or"),
        ("qwen3_next", {"linear_num_value_heads": 24}, "must be a multiple of the 16 key heads"),
        ("qwen3_next", {"linear_conv_kernel_dim": 1}, "must be from 2"),
        ("qwen3_next", {"hidden_act": "gelu"}, "must be silu"),
        ("qwen3_next", {"full_attention_interval": 0}, "must be from 1"),
        ("qwen3_next", {"use_sliding_window": True}, "has no windows"),
        ("qwen3_next", {"attn_output_gate": False}, "attention is gated"),
        ("qwen3_5_text", {"mamba_ssm_dtype": "bfloat16"}, "states are kept in it"),
        ("qwen3_5_text", {"mlp_only_layers": [1]}, "no layer has experts"),
        ("qwen3_5_text", {"num_experts": 4}, "has no experts"),
        ("qwen3_5_moe_text", {"norm_topk_prob": False}, "shares of experts are normalized"),
        ("qwen3_5_moe_text", {"mlp_only_layers": [1]}, "every layer has experts"),
    ],
)
def test_refusals(family: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        read_spec(edited(family, **changes))
