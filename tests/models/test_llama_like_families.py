"""Configurations of OLMo, Granite, GLM, Command R and their like: as published, and refused."""

from __future__ import annotations

from typing import Any

import pytest
from support.families import edited

from penstock.errors import ModelError
from penstock.interface.sources import Shifted, Stacked, Stored
from penstock.models.position_scale import PositionScale
from penstock.models.registry import read_spec
from penstock.models.spec import (
    ClampSpec,
    EmbeddingScale,
    MlpSpec,
    ModelSpec,
    NormSpec,
    QkNormSpec,
    RopeSpec,
)
from penstock.plan.lower import lower

FULL, SLIDING = "full_attention", "sliding_attention"


def windows(spec: ModelSpec) -> list[int | None]:
    return [layer.attention.window for layer in spec.layers]


def rotates(spec: ModelSpec) -> list[bool]:
    return [layer.attention.rope is not None for layer in spec.layers]


def test_olmo() -> None:
    spec = read_spec(edited("olmo"))
    norm = NormSpec(1e-5, "layer", weight=False)
    assert {spec.final_norm, spec.layers[0].attn_norm, spec.layers[0].mlp_norm} == {norm}
    assert spec.layers[0].attention.clamp == ClampSpec(8.0)
    assert read_spec(edited("olmo", clip_qkv=None)).layers[0].attention.clamp is None


def test_olmo3_scales_the_rotation_of_layers_without_a_window_alone() -> None:
    spec = read_spec(edited("olmo3"))
    assert windows(spec) == [4096] * 3 + [None]
    local, full = spec.layers[0].attention, spec.layers[3].attention
    assert local.rope == RopeSpec(5e5, 128)
    assert full.rope is not None
    assert (full.rope.kind, full.rope.factor, spec.max_positions) == ("yarn", 8.0, 65536)
    assert full.qk_norm == QkNormSpec(1e-6, over="projection")
    assert (spec.layers[0].attn_norm, spec.layers[0].mlp_post_norm) == (None, spec.final_norm)
    new = {
        "full_attention": {**edited("olmo3")["rope_scaling"], "rope_theta": 500000},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500000},
    }
    gone: dict[str, Any] = {"rope_scaling": ..., "rope_theta": ..., "layer_types": ...}
    assert read_spec(edited("olmo3", rope_parameters=new, **gone)) == spec


def test_granite() -> None:
    spec = read_spec(edited("granite"))
    layer = spec.layers[0]
    assert (layer.attention.scale, layer.residual_scale, spec.logits_scale) == (1 / 64, 0.22, 1 / 8)
    assert (spec.embedding_scale, spec.tie_embeddings) == (EmbeddingScale(12.0), True)


def test_smollm3() -> None:
    spec = read_spec(edited("smollm3"))
    assert rotates(spec) == [True, True, True, False]
    assert (spec.tie_embeddings, windows(spec)) == (True, [None] * 4)
    assert rotates(read_spec(edited("smollm3", no_rope_layers=...))) == [True, True, True, False]
    every = edited("smollm3", no_rope_layers=..., no_rope_layer_interval=2)
    assert rotates(read_spec(every)) == [True, False] * 2
    some = edited("smollm3", no_rope_layers=[0, 1, 0, 1, 1], layer_types=...)
    assert rotates(read_spec(some)) == [False, True, False, True]
    local = read_spec({**some, "use_sliding_window": True, "sliding_window": 7})
    assert windows(local) == [7, None, 7, None]


def test_glm() -> None:
    spec = read_spec(edited("glm"))
    attention = spec.layers[0].attention
    assert attention.rope == RopeSpec(5e6, 64, interleaved=True)
    assert (attention.qkv_bias, attention.output_bias) == (True, False)
    four = read_spec(edited("glm4"))
    layer = four.layers[0]
    norms = {layer.attn_norm, layer.attn_post_norm, layer.mlp_norm, layer.mlp_post_norm}
    assert norms == {four.final_norm}
    source = lower(four, max_positions=64).weights["layers.1.attn_post_norm"].source
    assert source == Stored("model.layers.1.post_self_attn_layernorm.weight", (6144,))


def test_cohere() -> None:
    """The length that it is for is that of ``model_max_length``, and R+ norms each head."""
    spec = read_spec(edited("cohere"))
    layer = spec.layers[0]
    assert (layer.parallel, layer.mlp_norm, layer.attn_norm) == (True, None, spec.final_norm)
    assert spec.final_norm == NormSpec(1e-5, "layer")
    assert (spec.max_positions, spec.logits_scale, spec.tie_embeddings) == (131072, 0.0625, True)
    assert layer.attention.rope == RopeSpec(8e6, 128, interleaved=True)
    plus = read_spec(edited("cohere", use_qk_norm=True))
    norm = QkNormSpec(1e-5, kind="layer", each_head=True)
    assert plus.layers[0].attention.qk_norm == norm


def test_cohere2() -> None:
    spec = read_spec(edited("cohere2"))
    assert (windows(spec), rotates(spec)) == ([4096] * 3 + [None], [True] * 3 + [False])
    kinds = [SLIDING] * 3 + [FULL]
    assert read_spec(edited("cohere2", layer_types=kinds)) == spec
    other = edited("cohere2", layer_types=kinds[::-1], sliding_window_pattern=...)
    assert rotates(read_spec({**other, "layer_switch": 4})) == [False, True, True, True]


def test_exaone4() -> None:
    spec = read_spec(edited("exaone4"))
    assert (windows(spec), rotates(spec)) == ([4096] * 3 + [None], [True] * 3 + [False])
    whole = edited("exaone4", sliding_window=None, layer_types=[FULL] * 4)
    assert rotates(read_spec(whole)) == [True] * 4
    silent = read_spec({**whole, "layer_types": None, "sliding_window_pattern": None})
    assert rotates(silent) == [True] * 4


def test_nemotron() -> None:
    spec = read_spec(edited("nemotron"))
    assert spec.layers[0].mlp == MlpSpec(9216, "relu2", gated=False)
    assert spec.layers[0].attention.rope == RopeSpec(1e4, 64)
    weights = lower(spec, max_positions=64).weights
    shifted = {name for name, weight in weights.items() if isinstance(weight.source, Shifted)}
    assert shifted == {name for name in weights if name.endswith("norm")}


def test_stablelm_stores_the_norm_of_each_head_by_itself() -> None:
    spec = read_spec(edited("stablelm", qk_layernorm=True, num_key_value_heads=4))
    source = lower(spec, max_positions=64).weights["layers.1.k_norm"].source
    names = "model.layers.1.self_attn.k_layernorm.norms.{}.weight"
    assert source == Stacked(tuple(Stored(names.format(i), (64,)) for i in range(4)))


def test_hunyuan() -> None:
    spec = read_spec(edited("hunyuan_v1_dense"))
    attention = spec.layers[0].attention
    assert attention.rope == RopeSpec(1e4 * 1000.0 ** (128 / 126), 128)
    assert attention.qk_norm == QkNormSpec(1e-5, after_rope=True)
    new = {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0, "rope_theta": 10000.0}
    v5 = edited("hunyuan_v1_dense", rope_parameters=new, rope_scaling=..., rope_theta=...)
    assert read_spec(v5) == spec


def test_ministral3() -> None:
    spec = read_spec(edited("ministral3"))
    attention = spec.layers[0].attention
    assert attention.position_scale == PositionScale(0.1, 16384)
    assert attention.rope is not None
    assert (attention.rope.kind, attention.rope.attention_factor) == ("yarn", 1.0)
    assert read_spec(edited("ministral3", rope_parameters=...)) == spec


def test_the_text_part_of_ministral3() -> None:
    """As its checkpoints are published: beside what reads images."""
    alone = edited("ministral3")
    whole = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "image_token_index": 10,
        "model_type": "mistral3",
        "text_config": {**alone, "architectures": None},
        "vision_config": {"model_type": "pixtral"},
    }
    spec = read_spec(whole, tensors=["language_model.model.norm.weight"])
    assert spec.layers == read_spec(alone).layers
    source = lower(spec, max_positions=64).weights["layers.1.q"].source
    name = "language_model.model.layers.1.self_attn.q_proj.weight"
    assert source == Stored(name, (4096, 4096))


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("olmo", {"clip_qkv": -1.0}, "clip_qkv .* must be greater than 0"),
        ("olmo2", {"clip_qkv": 8.0}, "does not clip"),
        ("olmo2", {"layer_types": [SLIDING] * 2}, "must be 'full_attention'"),
        ("olmo3", {"layer_types": ["linear_attention"] * 4}, "layer_types"),
        ("olmo3", {"rope_theta": 10000}, "which layers it is for is not certain"),
        ("olmo3", {"rope_parameters": {"rope_type": "default"}}, "only one of them"),
        (
            "olmo3",
            {"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "truncate": False}},
            "truncate .False. must be true: transformers passes it over",
        ),
        (
            "olmo3",
            {
                "rope_scaling": ...,
                "rope_theta": ...,
                "rope_parameters": {
                    "full_attention": {"rope_type": "yarn", "factor": 8.0, "truncate": False}
                },
            },
            "truncate .False. must be true",
        ),
        ("granite", {"logits_scaling": 0}, "logits_scaling .0. must be greater than 0"),
        ("granite", {"residual_multiplier": "x"}, "must be a number"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "must have a number for each of 4 layers"),
        ("smollm3", {"no_rope_layers": [1, 2, 1, 0]}, "from 0 to 1"),
        ("smollm3", {"layer_types": [SLIDING] * 4}, "but use_sliding_window or sliding_window"),
        ("glm", {"partial_rotary_factor": 0.01}, "rotate in pairs"),
        ("cohere", {"logit_scale": 0.0}, "logit_scale"),
        ("cohere", {"use_qk_norm": 1}, "must be true or false"),
        ("cohere2", {"use_parallel_block": False}, "use_parallel_block .* must be true"),
        ("cohere2", {"rotary_pct": 0.5}, "rotary_pct .* must be 1"),
        ("cohere2", {"layer_switch": 2}, "contradicts sliding_window_pattern, which is 4"),
        ("cohere2", {"layer_types": [FULL] * 4}, "contradicts layer_types"),
        ("cohere2", {"sliding_window": None}, "sliding_window .* is required"),
        ("ministral", {"sliding_window": None}, "but sliding_window is null"),
        ("ministral", {"attention_bias": True}, "has no biases"),
        (
            "ministral3",
            {"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}},
            "supported are yarn",
        ),
        (
            "ministral3",
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
            "llama_4_scaling_beta .absent. is required",
        ),
        ("ernie4_5", {"compression_ratio": 2.0}, "not compressed"),
        ("helium", {"head_dim": 64}, "times num_attention_heads must be hidden_size"),
        ("nemotron", {"hidden_act": "tanh"}, "hidden_act"),
        ("exaone4", {"layer_types": None}, "sliding_window_pattern .'LLLG'. must be an integer"),
        ("exaone4", {"sliding_window": None}, "but sliding_window is null"),
        ("hunyuan_v1_dense", {"use_cla": True}, "use_cla .* must be false"),
        ("hunyuan_v1_dense", {"use_qk_norm": False}, "use_qk_norm .* must be true"),
        ("hunyuan_v1_dense", {"attention_head_dim": 64}, "contradicts a head_dim of 128"),
        (
            "hunyuan_v1_dense",
            {"rope_scaling": {"type": "linear", "alpha": 2.0}},
            "must be 'dynamic' beside an alpha",
        ),
        (
            "hunyuan_v1_dense",
            {"rope_scaling": {"type": "dynamic", "alpha": 1e9, "new": 1}},
            "not a field Penstock knows",
        ),
        ("hunyuan_v1_dense", {"rope_theta": 1e15}, "makes a base of"),
        ("ministral3", {"rope_parameters": None}, "must not be null"),
        ("stablelm", {"rope_scaling": {"type": "longrope"}}, "longrope"),
    ],
)
def test_refused(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(edited(family, **changes))
