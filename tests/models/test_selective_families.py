"""Configurations of families with selective scans: as published, and refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.families import PUBLISHED, edited

from penstock.errors import ModelError
from penstock.interface.sources import ScaledRows, Shifted, Squeezed, Stored
from penstock.models.registry import read_spec
from penstock.models.spec import (
    AttentionSpec,
    EmbeddingScale,
    ExpertsSpec,
    LayerSpec,
    MixerSum,
    MlpSpec,
    NormSpec,
    RopeSpec,
    Routing,
    SelectiveSpec,
    SharedExpertSpec,
)
from penstock.plan.lower import lower
from penstock.weights.model_folder import load_model_spec


def test_granite_4_with_experts() -> None:
    spec = read_spec(PUBLISHED["granitemoehybrid"])
    scan = SelectiveSpec(48, 64, 1, 128, kernel=4, eps=1e-5)
    attention = AttentionSpec(12, 4, 128, None, 0.0078125)
    experts = ExpertsSpec(
        64,
        6,
        512,
        routing=Routing("softmax_chosen", normalize=False),
        shared=SharedExpertSpec(1024),
    )
    assert [layer.mixer for layer in spec.layers] == [scan] * 5 + [attention]
    assert {layer.mlp for layer in spec.layers} == {experts}
    assert {layer.residual_scale for layer in spec.layers} == {0.22}
    assert spec.embedding_scale is not None
    assert (spec.embedding_scale.factor, spec.logits_scale) == (12.0, 1 / 6)
    assert (spec.tie_embeddings, spec.max_positions) == (True, 131072)


def test_granite_4_dense_and_without_scans() -> None:
    """The small ones are called hybrids, too."""
    spec = read_spec(
        edited(
            "granitemoehybrid",
            layer_types=["attention"] * 6,
            num_local_experts=0,
            num_experts_per_tok=0,
            position_embedding_type="rope",
            rope_theta=1e7,
            shared_intermediate_size=8192,
        )
    )
    assert {layer.mlp for layer in spec.layers} == {MlpSpec(8192)}
    assert {layer.attention.rope for layer in spec.layers} == {RopeSpec(1e7, 128)}
    assert not lower(spec).state_layers


def test_granite_4_is_all_scans_where_nothing_is_said() -> None:
    spec = read_spec(edited("granitemoehybrid", layer_types=...))
    assert all(isinstance(layer.mixer, SelectiveSpec) for layer in spec.layers)
    wide = edited("granitemoehybrid", mamba_d_head="auto", mamba_expand=4, mamba_n_groups=2)
    scan = read_spec(wide).layers[0].mixer
    assert scan == SelectiveSpec(48, 128, 2, 128, kernel=4, eps=1e-5)


def test_nemotron_h() -> None:
    spec = read_spec(PUBLISHED["nemotron_h"])
    norm = NormSpec(1e-5)
    scan = LayerSpec(SelectiveSpec(128, 64, 8, 128, kernel=4, eps=1e-5), None, norm, None)
    mlp = LayerSpec(None, MlpSpec(21504, "relu2", gated=False), None, norm)
    attention = LayerSpec(AttentionSpec(32, 8, 128, None, 128**-0.5), None, norm, None)
    assert spec.layers == (scan, mlp, scan, attention, mlp)
    names = ["mamba", "mlp", "linear_attention", "full_attention", "-"]
    by_name = edited("nemotron_h", hybrid_override_pattern=..., layers_block_type=names)
    assert read_spec(by_name).layers == spec.layers
    assert read_spec(edited("nemotron_h", layers_block_type=names)).layers == spec.layers
    nothing = edited("nemotron_h", layers_block_type=None)
    assert read_spec(nothing).layers == spec.layers


def test_nemotron_h_with_experts() -> None:
    spec = read_spec(
        edited(
            "nemotron_h",
            hybrid_override_pattern="ME",
            num_hidden_layers=2,
            n_routed_experts=128,
            num_experts_per_tok=6,
            moe_intermediate_size=1856,
            moe_shared_expert_intermediate_size=3712,
            moe_latent_size=1024,
            n_shared_experts=1,
            n_group=1,
            topk_group=1,
            norm_topk_prob=True,
            routed_scaling_factor=2.5,
        )
    )
    experts = spec.layers[1].mlp
    assert isinstance(experts, ExpertsSpec)
    assert (experts.num_experts, experts.top_k, experts.intermediate_size) == (128, 6, 1856)
    assert (experts.gates, experts.latent, experts.activation) == (False, 1024, "relu2")
    assert experts.shared == SharedExpertSpec(3712)
    routing = experts.routing
    assert (routing.scores, routing.choice_bias, routing.scale) == ("sigmoid", True, 2.5)


def test_mamba2() -> None:
    spec = read_spec(PUBLISHED["mamba2"])
    scan = SelectiveSpec(128, 64, 8, 128, kernel=4, eps=1e-5)
    assert [layer.mixer for layer in spec.layers] == [scan] * 2
    assert all(layer.mlp is None for layer in spec.layers)
    assert not lower(spec).kv_layers


@pytest.mark.parametrize("family", ["nemotron_h", "mamba2"])
@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ([0.0, math.inf], (0.0, math.inf)),
        ([0.001, 0.1], (0.001, 0.1)),
        ([0, {"__float__": "Infinity"}], (0.0, math.inf)),
        (None, (0.0, math.inf)),
    ],
)
def test_limits_of_time_steps(
    family: str, limit: Any, expected: tuple[float, float], tmp_path: Path
) -> None:
    """Also where the file has a number that JSON does not know."""
    config = edited(family, time_step_limit=limit)
    (tmp_path / "config.json").write_text(json.dumps(config))
    scan = load_model_spec(tmp_path).layers[0].mixer
    assert isinstance(scan, SelectiveSpec)
    assert scan.dt_limits == expected


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("mamba2", {"time_step_limit": [0.1, 0.0]}, "two numbers from 0 on"),
        ("mamba2", {"time_step_limit": [-1.0, 0.0]}, "two numbers from 0 on"),
        ("mamba2", {"time_step_limit": [math.inf, math.inf]}, "two numbers from 0 on"),
        ("mamba2", {"time_step_limit": [0.0]}, "two numbers from 0 on"),
        ("mamba2", {"time_step_limit": "all"}, "two numbers from 0 on"),
        ("mamba2", {"time_step_limit": [0.0, "inf"]}, "two numbers from 0 on"),
        ("mamba2", {"expand": 3}, "times head_dim must be expand times hidden_size"),
        ("mamba2", {"n_groups": 7}, "must divide the 128 heads"),
        ("mamba2", {"hidden_act": "gelu"}, "must be silu"),
        ("mamba2", {"conv_kernel": 1}, "must be from 2 to"),
        ("mamba2", {"hidden_size": math.inf}, "must be an integer"),
        ("granitemoehybrid", {"layer_types": ["mamba"] * 5}, "must be 6 times one of"),
        ("granitemoehybrid", {"layer_types": ["conv"] * 6}, "must be 6 times one of"),
        ("granitemoehybrid", {"mamba_d_head": 32}, "must be 64 or auto"),
        ("granitemoehybrid", {"mamba_n_heads": 47}, "must divide mamba_expand times"),
        ("granitemoehybrid", {"position_embedding_type": "alibi"}, "must be rope or nope"),
        ("granitemoehybrid", {"normalization_function": "layernorm"}, "must be rmsnorm"),
        ("nemotron_h", {"hybrid_override_pattern": "M-MX-"}, "must name a kind for each layer"),
        ("nemotron_h", {"hybrid_override_pattern": ""}, "must name a kind for each layer"),
        ("nemotron_h", {"num_hidden_layers": 4}, "must be the 5 of hybrid_override_pattern"),
        (
            "nemotron_h",
            {"hybrid_override_pattern": ..., "layers_block_type": ["mamba"] * 3},
            r"num_hidden_layers .5. must be the 3 of layers_block_type$",
        ),
        (
            "nemotron_h",
            {"hybrid_override_pattern": ...},
            "must be the 4 of hybrid_override_pattern or layers_block_type, which are absent",
        ),
        (
            "nemotron_h",
            {"layers_block_type": ["mamba"] * 5},
            "hybrid_override_pattern .'M-M.-'. contradicts layers_block_type: leave out",
        ),
        (
            "nemotron_h",
            {"layers_block_type": ["other"]},
            "hybrid_override_pattern .* contradicts layers_block_type",
        ),
        ("nemotron_h", {"attention_bias": True}, "attention has no biases"),
        ("nemotron_h", {"mamba_proj_bias": True}, "use_bias is what scans go by"),
        ("nemotron_h", {"sliding_window": 128}, "is not supported"),
        ("nemotron_h", {"mamba_ssm_cache_dtype": "float16"}, "states are kept in it"),
        ("nemotron_h", {"head_dim": 64}, "contradicts"),
    ],
)
def test_what_cannot_be_is_refused(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(edited(family, **changes))


def test_not_a_number_is_no_number_of_a_configuration(tmp_path: Path) -> None:
    config = edited("mamba2", time_step_limit=[0.0, math.nan])
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="NaN is not a number"):
        load_model_spec(tmp_path)


def test_falcon_h1() -> None:
    """Attention and a scan side by side, whose factors go where they are exact."""
    spec = read_spec(PUBLISHED["falcon_h1"])
    of_input, of_all = 1.25, (0.3535533905932738, 0.25, 0.3535533905932738, 0.5, 0.3535533905932738)
    z, x, b, c, dt = (of_input * each for each in of_all)
    scan = SelectiveSpec(
        24, 64, 1, 128, kernel=4, eps=None, gate_first=True, z_factor=z, dt_factor=dt
    )
    attention = AttentionSpec(8, 2, 64, RopeSpec(1e11, 64), 0.390625 / 8)
    mixers = MixerSum((attention, scan), (0.9375, 0.23570226039551587))
    mlp = MlpSpec(2048, gate_factor=0.8838834764831844, output_factor=0.5859375)
    norm = NormSpec(1e-5)
    assert set(spec.layers) == {LayerSpec(mixers, mlp, attn_norm=norm, mlp_norm=norm)}
    assert (spec.embedding_scale, spec.logits_scale) == (
        EmbeddingScale(5.656854249492381),
        0.0390625,
    )
    plan = lower(spec)
    taps = ScaledRows(
        Squeezed(Stored("model.layers.0.mamba.conv1d.weight", (1792, 1, 4))),
        ((1536, x), (128, b), (128, c)),
    )
    assert plan.weights["layers.0.scan.conv"].source == Shifted(taps, 0.0)
    bias = Stored("model.layers.0.mamba.conv1d.bias", (1792,))
    assert plan.weights["layers.0.scan.conv.bias"].source == Shifted(bias, 0.0)
    assert (len(plan.kv_layers), len(plan.state_layers)) == (3, 3)
    silent = ("mlp_multipliers", "ssm_multipliers", "ssm_in_multiplier", "key_multiplier")
    layer = read_spec(edited("falcon_h1", **dict.fromkeys(silent, ...))).layers[0]
    assert isinstance(layer.mixer, MixerSum)
    assert layer.mixer.mixers[1] == replace(scan, z_factor=1.0, dt_factor=1.0)
    assert (layer.attention.scale, layer.mlp) == (1 / 8, MlpSpec(2048))


def test_falcon_h1_norms_and_widths() -> None:
    """Norms of what a scan reads stand before its gate, unless told otherwise."""
    normed = edited("falcon_h1", mamba_rms_norm=True, mamba_norm_before_gate=...)
    scan = read_spec(normed).layers[0].mixers[1]
    assert isinstance(scan, SelectiveSpec)
    assert (scan.eps, scan.gate_first) == (1e-5, False)
    wide = edited("falcon_h1", mamba_d_ssm=None, mamba_d_head="auto", mamba_n_heads=16)
    scan = read_spec(wide).layers[0].mixers[1]
    assert isinstance(scan, SelectiveSpec)
    assert (scan.heads, scan.head_dim) == (16, 128)
    listed = edited("falcon_h1", layers_block_type=["hybrid"] * 3)
    assert read_spec(listed) == read_spec(PUBLISHED["falcon_h1"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"attention_in_multiplier": 1.5, "attention_bias": True},
            "must be 1 where attention_bias",
        ),
        ({"mamba_proj_bias": True}, "ssm_in_multiplier .1.25. must be 1 where"),
        ({"mlp_multipliers": [1.0]}, "mlp_multipliers .* must have 2 numbers"),
        ({"ssm_multipliers": [1.0] * 4}, "ssm_multipliers .* must have 5 numbers"),
        ({"ssm_multipliers": [1.0] * 4 + ["1"]}, "must hold numbers"),
        ({"key_multiplier": 0}, "key_multiplier .0. must be greater than 0"),
        ({"hidden_act": "gelu"}, "must be silu"),
        ({"mamba_use_mlp": False}, "every layer has an MLP"),
        ({"layers_block_type": ["hybrid"]}, "hybrid for every layer"),
        ({"mamba_n_heads": 25}, r"must divide the width of the scan \(1536\)"),
        ({"mamba_d_head": 32}, "mamba_d_head .32. must be 64 or auto"),
    ],
)
def test_falcon_h1_refusals(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(edited("falcon_h1", **changes))
