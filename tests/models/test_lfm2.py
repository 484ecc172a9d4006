"""Configurations of LFM2, dense and with experts: as published, and refused."""

from __future__ import annotations

from typing import Any

import pytest
from support.families import edited
from support.families.lfm2 import CONV, FULL

from penstock.errors import ModelError
from penstock.interface.sources import RowsOf, Squeezed, Stored
from penstock.models.registry import read_spec
from penstock.models.spec import (
    AttentionSpec,
    ExpertsSpec,
    MlpSpec,
    NormSpec,
    QkNormSpec,
    RopeSpec,
    Routing,
    ShortConvSpec,
)
from penstock.plan.lower import lower

KINDS = [CONV, CONV, FULL, CONV, CONV, FULL, CONV]


def test_as_published() -> None:
    spec = read_spec(edited("lfm2"))
    conv = ShortConvSpec(2048, kernel=3, bias=False)
    norm = NormSpec(1e-5)
    for layer, kind in zip(spec.layers, KINDS, strict=True):
        assert (layer.attn_norm, layer.mlp_norm, layer.mlp) == (norm, norm, MlpSpec(8192))
        if kind == CONV:
            assert layer.mixer == conv
        else:
            norms = QkNormSpec(1e-5)
            assert layer.mixer == AttentionSpec(
                32, 8, 64, RopeSpec(1e6, 64), scale=1 / 8, qk_norm=norms
            )
    assert (spec.final_norm, spec.tie_embeddings, spec.notes) == (norm, True, ())
    assert (spec.max_positions, spec.eos_token_ids) == (128000, (7,))


def test_later_files_say_it_otherwise() -> None:
    """LFM2.5's, and files that leave out what has a default."""
    spec = read_spec(edited("lfm2"))
    named = {"layer_types": KINDS, "full_attn_idxs": None, "block_ff_dim": ...}
    named |= {"intermediate_size": 12288, "tie_embedding": True, "tie_word_embeddings": True}
    named |= {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}
    assert read_spec(edited("lfm2", **named)) == spec
    assert read_spec(edited("lfm2", layer_types=KINDS)) == spec
    silent = ["block_auto_adjust_ff_dim", "block_multiple_of", "block_ffn_dim_multiplier"]
    silent += ["block_dim", "conv_dim", "conv_L_cache", "conv_bias", "rope_theta", "norm_eps"]
    silent += ["num_heads", "use_pos_enc", "max_position_embeddings", "num_key_value_heads"]
    assert read_spec(edited("lfm2", **dict.fromkeys(silent, ...))) == spec
    untied = read_spec(edited("lfm2", tie_embedding=False))
    assert not untied.tie_embeddings
    whole = read_spec(edited("lfm2", full_attn_idxs=...))
    assert all(isinstance(layer.mixer, AttentionSpec) for layer in whole.layers)
    none = read_spec(edited("lfm2", full_attn_idxs=[]))
    assert all(isinstance(layer.mixer, ShortConvSpec) for layer in none.layers)


@pytest.mark.parametrize(
    ("changes", "width"),
    [
        ({"block_ff_dim": 6656, "hidden_size": 1024}, 4608),  # 350M
        ({"block_ff_dim": 10752, "block_auto_adjust_ff_dim": False}, 10752),  # 2.6B
        ({"block_ffn_dim_multiplier": None}, 8192),
        ({"block_ff_dim": 100, "block_ffn_dim_multiplier": None}, 66),  # no multiple either
        ({"block_ff_dim": 100}, 256),
        ({"block_ff_dim": 100, "block_multiple_of": 8, "block_ffn_dim_multiplier": 1.3}, 88),
    ],
)
def test_widths(changes: dict[str, Any], width: int) -> None:
    sizes = {"block_dim": ..., "conv_dim": ..., "conv_dim_out": ...}
    spec = read_spec(edited("lfm2", **sizes, **changes))
    assert {layer.mlp for layer in spec.layers} == {MlpSpec(width)}


def test_of_two_widths_the_one_that_transformers_takes_counts() -> None:
    spec = read_spec(edited("lfm2", intermediate_size=8192))
    assert spec.layers[0].mlp == MlpSpec(8192)
    assert spec.notes == ("config.json: block_ff_dim 12288 counts, not intermediate_size 8192",)
    assert read_spec(edited("lfm2", intermediate_size=12288)).notes == ()


def test_tensors() -> None:
    weights = lower(read_spec(edited("lfm2")), max_positions=64).weights
    taps = Stored("model.layers.0.conv.conv.weight", (2048, 1, 3))
    assert weights["layers.0.conv"].source == Squeezed(taps)
    joined = Stored("model.layers.0.conv.in_proj.weight", (6144, 2048))
    for i, name in enumerate("bcx"):
        rows = ((2048 * i, 2048 * (i + 1)),)
        assert weights[f"layers.0.conv_{name}"].source == RowsOf(joined, rows)
    assert weights["layers.2.o"].source == Stored(
        "model.layers.2.self_attn.out_proj.weight", (2048, 2048)
    )
    assert "head" not in weights


def test_with_experts() -> None:
    spec = read_spec(edited("lfm2_moe"))
    routing = Routing("sigmoid", normalize_eps=1e-6, choice_bias=True)
    experts = ExpertsSpec(32, 4, 1792, routing=routing)
    assert [layer.mlp for layer in spec.layers] == [MlpSpec(7168)] * 2 + [experts] * 2
    kinds = [isinstance(layer.mixer, ShortConvSpec) for layer in spec.layers]
    assert kinds == [True, True, False, True]
    plain = read_spec(edited("lfm2_moe", use_expert_bias=False, norm_topk_prob=False))
    mlp = plain.layers[3].mlp
    assert isinstance(mlp, ExpertsSpec)
    assert mlp.routing == Routing("sigmoid", normalize=False, normalize_eps=1e-6)
    numbers = edited("lfm2_moe", layer_types=..., full_attn_idxs=[2])  # as others name them
    assert read_spec(numbers) == spec
    bias = lower(spec, max_positions=64).weights["layers.2.router.choice_bias"].source
    assert "model.layers.2.feed_forward.expert_bias" in str(bias)


@pytest.mark.parametrize(
    ("family", "changes", "why"),
    [
        ("lfm2", {"layer_types": [CONV] * 6}, "7 times 'conv' or 'full_attention'"),
        ("lfm2", {"layer_types": ["mamba"] * 7}, "7 times 'conv' or 'full_attention'"),
        ("lfm2", {"layer_types": [CONV] * 7}, "contradicts layer_types"),
        ("lfm2", {"full_attn_idxs": [7]}, "from 0 to 6"),
        ("lfm2", {"conv_L_cache": 1}, "must be from 2"),
        ("lfm2", {"conv_dim": 1024}, "conv_dim .1024. must be 2048 here"),
        ("lfm2", {"num_heads": 16}, "must be 32 here"),
        ("lfm2", {"block_norm_eps": 1e-6}, "must be 1e-05 here"),
        ("lfm2", {"block_use_swiglu": False}, "must be True here"),
        ("lfm2", {"use_pos_enc": False}, "must be True here"),
        ("lfm2", {"tie_embedding": False, "tie_word_embeddings": True}, "contradicts"),
        ("lfm2", {"block_ffn_dim_multiplier": 1e6}, "makes MLPs of width"),
        ("lfm2_moe", {"layer_types": ...}, "layer_types .absent. must be given"),
        ("lfm2_moe", {"num_dense_layers": 5}, "from 0 to 4"),
        ("lfm2_moe", {"num_experts_per_tok": 33}, "from 1 to 32"),
    ],
)
def test_what_cannot_be_is_refused(family: str, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        read_spec(edited(family, **changes))
