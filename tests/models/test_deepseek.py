"""DeepSeek's configurations and checkpoints, and GLM's: as published, and refused."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.checkpoints import tiny_checkpoint
from support.families import PUBLISHED, edited
from support.families.deepseek_v3 import KIMI_K2

from penstock.errors import ModelError, WeightError
from penstock.interface.sources import RowsOf, Stored
from penstock.models.registry import read_spec
from penstock.models.spec import (
    AlibiSpec,
    AttentionSpec,
    ClampSpec,
    ExpertsSpec,
    LatentSpec,
    MlpSpec,
    NormSpec,
    RopeSpec,
    Routing,
    SharedExpertSpec,
)
from penstock.plan.lower import lower
from penstock.weights.checkpoint import open_weights
from penstock.weights.model_folder import load_model_spec

BOTH = ("deepseek_v2", "deepseek_v3")


def test_v2_lite() -> None:
    spec = read_spec(PUBLISHED["deepseek_v2"])
    attention = spec.layers[0].attention
    assert attention.latent == LatentSpec(512, 128, 64, 128, q_rank=None, eps=1e-6)
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (16, 1, 576)
    rope = attention.rope
    assert rope is not None
    assert (rope.kind, rope.dim, rope.interleaved, rope.attention_factor) == ("yarn", 64, True, 1.0)
    mscale = 0.1 * 0.707 * math.log(40) + 1
    assert attention.scale == pytest.approx(192**-0.5 * mscale**2, rel=1e-12)
    experts = ExpertsSpec(
        64, 6, 1408, routing=Routing(normalize=False), shared=SharedExpertSpec(2816)
    )
    assert [layer.mlp for layer in spec.layers] == [MlpSpec(10944), experts, experts]
    assert spec.max_positions == 163840
    weights = lower(spec, max_positions=64).weights
    at = "model.layers.1.self_attn."
    up = Stored(at + "kv_b_proj.weight", (16 * 256, 512))
    keys, values = weights["layers.1.k_up"].source, weights["layers.1.v_up"].source
    assert isinstance(keys, RowsOf)
    assert isinstance(values, RowsOf)
    assert (keys.source, keys.runs[1]) == (up, (256, 384))
    assert (values.source, values.runs[1]) == (up, (384, 512))
    queries = weights["layers.1.q_rope"].source
    assert isinstance(queries, RowsOf)
    assert queries.source == Stored(at + "q_proj.weight", (16 * 192, 2048))
    assert queries.runs[2] == (2 * 192 + 128, 3 * 192)
    down = weights["layers.1.k_rope"].source
    assert down == RowsOf(Stored(at + "kv_a_proj_with_mqa.weight", (576, 2048)), ((512, 576),))


def test_v3() -> None:
    spec = read_spec(PUBLISHED["deepseek_v3"])
    attention = spec.layers[0].attention
    assert attention.latent == LatentSpec(512, 128, 64, 128, q_rank=1536, eps=1e-6)
    assert attention.scale == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2)
    routing = Routing(
        "sigmoid",
        normalize_eps=1e-20,
        scale=2.5,
        groups=8,
        groups_chosen=4,
        group_score="top2",
        choice_bias=True,
    )
    experts = ExpertsSpec(256, 8, 2048, routing=routing, shared=SharedExpertSpec(2048))
    assert [layer.mlp for layer in spec.layers] == [MlpSpec(18432)] * 3 + [experts] * 2
    assert spec.names is not None
    assert spec.names.is_idle("model.layers.5.eh_proj.weight")
    assert spec.names.is_idle("model.layers.5.mlp.experts.3.up_proj.weight")
    assert not spec.names.is_idle("model.layers.50.eh_proj.weight")
    assert not spec.names.is_idle("model.layers.4.eh_proj.weight")


def test_kimi_k2_is_v3_by_another_name() -> None:
    spec = read_spec(KIMI_K2)
    assert spec == read_spec({**KIMI_K2, "model_type": "deepseek_v3"})
    mixture = spec.layers[1].mlp
    assert isinstance(mixture, ExpertsSpec)
    assert (mixture.num_experts, mixture.routing.groups, mixture.routing.scale) == (384, 1, 2.827)
    assert spec.names is not None
    assert not spec.names.is_idle("model.layers.5.eh_proj.weight")  # it has no layer that drafts
    with pytest.raises(ModelError, match="model_type"):
        read_spec(edited("deepseek_v2", model_type="kimi_k2"))


@pytest.mark.parametrize("family", BOTH)
def test_latents_are_normed_with_their_own_epsilon(family: str) -> None:
    spec = read_spec(edited(family, rms_norm_eps=1e-3))
    assert spec.final_norm == NormSpec(1e-3)
    latent = spec.layers[0].attention.latent
    assert latent is not None
    assert latent.eps == 1e-6


@pytest.mark.parametrize("family", BOTH)
def test_rotations(family: str) -> None:
    """Scores are multiplied where YaRN weighs all dimensions, and there alone."""
    plain = read_spec(edited(family, rope_scaling=None)).layers[0].attention
    assert plain.rope == RopeSpec(10000.0, 64, interleaved=True)
    assert plain.scale == 192**-0.5
    yarn = {k: v for k, v in PUBLISHED[family]["rope_scaling"].items() if "mscale" not in k}
    assert read_spec(edited(family, rope_scaling=yarn)).layers[0].attention.scale == 192**-0.5
    halves = edited(family, rope_interleave=False)
    if family == "deepseek_v2":
        with pytest.raises(ModelError, match="rope_interleave"):
            read_spec(halves)
    else:
        rope = read_spec(halves).layers[0].attention.rope
        assert rope is not None
        assert not rope.interleaved


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kv_lora_rank": 0}, r"kv_lora_rank \(0\) must be from 1"),
        ({"kv_lora_rank": "512"}, r"kv_lora_rank \('512'\) must be an integer"),
        ({"q_lora_rank": 0}, r"q_lora_rank \(0\) must be from 1"),
        ({"qk_rope_head_dim": 63}, "63 of a head's 63 components rotate"),
        ({"qk_nope_head_dim": -1}, r"qk_nope_head_dim \(-1\) must be from 1"),
        ({"v_head_dim": 1 << 20}, r"v_head_dim \(1048576\) must be from 1"),
        ({"head_dim": 128}, r"head_dim \(128\) must be qk_rope_head_dim \(64\)"),
        ({"qk_head_dim": 128}, r"qk_head_dim \(128\) must be what both parts .* \(192\)"),
        ({"num_key_value_heads": 4}, r"num_key_value_heads \(4\) must be (16|128), one for each"),
        ({"moe_layer_freq": 2}, r"moe_layer_freq \(2\) must be 1"),
        ({"topk_method": "best"}, r"topk_method \('best'\)"),
        ({"scoring_func": "tanh"}, r"scoring_func \('tanh'\) must be"),
        ({"num_experts_per_tok": 1000}, r"num_experts_per_tok \(1000\) must be from 1"),
        ({"rope_scaling": {"type": "longrope"}}, "type .* is not supported"),
        ({"latent_dim": 4}, "latent_dim .* is not a field Penstock knows"),
    ],
)
def test_what_would_be_another_model_is_refused(
    family: str, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(ModelError, match=why):
        read_spec(edited(family, **changes))


@pytest.mark.parametrize(
    ("family", "changes", "why"),
    [
        ("deepseek_v2", {"norm_topk_prob": True}, "transformers does not normalize shares"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method"),
        (
            "deepseek_v2",
            {"topk_method": "group_limited_greedy", "n_group": 5},
            "64 experts do not divide into 5 equal groups",
        ),
        ("deepseek_v2", {"topk_method": "group_limited_greedy", "n_group": ...}, "n_group"),
        ("deepseek_v3", {"topk_method": "greedy"}, "must be noaux_tc"),
        ("deepseek_v3", {"n_group": 7}, "must divide the 256 experts into equal groups"),
        ("deepseek_v3", {"topk_group": 9}, r"topk_group \(9\) must be from 1 to 8"),
        ("deepseek_v3", {"num_nextn_predict_layers": -1}, "num_nextn_predict_layers"),
        (
            "deepseek_v3",
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}},
            "weight_block_size .* must be two integers",
        ),
    ],
)
def test_what_one_family_has_is_refused(family: str, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        read_spec(edited(family, **changes))


def test_glm_4_7_flash() -> None:
    spec = read_spec(PUBLISHED["glm4_moe_lite"])
    assert spec.layers[0].attention.latent == LatentSpec(512, 192, 64, 256, q_rank=768, eps=1e-6)
    assert isinstance(spec.layers[0].mlp, MlpSpec)
    mixture = spec.layers[1].mlp
    assert isinstance(mixture, ExpertsSpec)
    assert (mixture.top_k, mixture.routing.scale, mixture.routing.groups) == (4, 1.8, 1)
    kinds = ["dense", "sparse", "sparse"]
    assert read_spec(edited("glm4_moe_lite", mlp_layer_types=kinds)) == spec
    for changes in (
        {"first_k_dense_replace": 2},
        {"mlp_layer_types": ["sparse", "dense", "sparse"]},
        {"mlp_layer_types": ["dense", "dense", "sparse"]},
    ):
        with pytest.raises(ModelError, match=r"first_k_dense_replace .* contradicts"):
            read_spec(edited("glm4_moe_lite", **changes))
    with pytest.raises(ModelError, match="must be 3 times 'dense' or 'sparse'"):
        read_spec(edited("glm4_moe_lite", mlp_layer_types=["dense"]))


def changed(folder: Path, to: Path, **changes: Any) -> Path:
    shutil.copytree(folder, to)
    config = json.loads((folder / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, **changes}))
    return to


@pytest.mark.parametrize(
    ("changes", "tensor"),
    [
        ({"kv_lora_rank": 48}, "kv_[ab]_proj"),
        ({"q_lora_rank": 32}, "q_a_proj"),
        ({"qk_nope_head_dim": 16, "qk_head_dim": 24}, "q_b_proj"),
        ({"v_head_dim": 24}, "kv_b_proj"),
        (
            {"qk_rope_head_dim": 10, "head_dim": 10, "qk_head_dim": 34},
            "kv_a_proj_with_mqa|q_b_proj",
        ),
    ],
)
def test_ranks_that_disagree_with_the_weights_are_refused_before_any_is_read(
    changes: dict[str, Any], tensor: str, tmp_path: Path
) -> None:
    folder = changed(tiny_checkpoint("deepseek_v3"), tmp_path / "model", **changes)
    spec = load_model_spec(folder)
    with pytest.raises(WeightError, match=rf"({tensor})\S* has shape .* config.json asks for"):
        open_weights(folder, spec, lower(spec).weights, dtype="float32")


def test_layers_that_draft_are_passed_over(tmp_path: Path) -> None:
    folder = changed(tiny_checkpoint("deepseek_v3"), tmp_path / "model")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    behind = {
        "model.layers.3.eh_proj.weight": np.ones((4, 8), np.float32),
        "model.layers.3.self_attn.kv_b_proj.weight": np.ones((2, 2), np.float32),
    }
    save_file({**tensors, **behind}, file, {"format": "pt"})
    spec = load_model_spec(folder)
    open_weights(folder, spec, lower(spec).weights, dtype="float32")
    other = {"model.layers.4.eh_proj.weight": np.ones((4, 8), np.float32)}
    save_file({**tensors, **other}, file, {"format": "pt"})
    with pytest.raises(WeightError, match=r"model\.layers\.4\.eh_proj\.weight"):
        open_weights(folder, spec, lower(spec).weights, dtype="float32")


def test_a_specification_that_contradicts_itself_is_refused() -> None:
    latent = LatentSpec(32, 8, 4, 8, q_rank=None)
    rope = RopeSpec(10000.0, 4)
    AttentionSpec(2, 1, 36, rope, 0.1, latent=latent)
    with pytest.raises(ModelError, match="one KV head of 36 components, not 2 of 36"):
        AttentionSpec(2, 2, 36, rope, 0.1, latent=latent)
    with pytest.raises(ModelError, match="one KV head of 36 components, not 1 of 32"):
        AttentionSpec(2, 1, 32, rope, 0.1, latent=latent)
    for more in (
        {"qkv_bias": True},
        {"key_is_value": True},
        {"alibi": AlibiSpec()},
        {"clamp": ClampSpec(2.0)},
    ):
        with pytest.raises(ModelError, match=r"attention over latents has biases|not normed"):
            AttentionSpec(2, 1, 36, rope, 0.1, latent=latent, **more)
    with pytest.raises(ModelError, match="6 components of a head rotate"):
        AttentionSpec(2, 1, 36, RopeSpec(10000.0, 6), 0.1, latent=latent)
