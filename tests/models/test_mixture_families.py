"""Configurations of families with experts: as published, and refused."""

from __future__ import annotations

from typing import Any

import pytest
from support.families import edited

from penstock.errors import ModelError
from penstock.models.float_codes import Mxfp4
from penstock.models.position_scale import PositionScale
from penstock.models.registry import read_spec
from penstock.models.spec import (
    Chunk,
    ClampedSwiglu,
    ExpertsSpec,
    MlpSpec,
    ModelSpec,
    QkNormSpec,
    RopeSpec,
    Routing,
    SharedExpertSpec,
)


def mixtures(spec: ModelSpec) -> list[ExpertsSpec | None]:
    """The mixture of each layer, None where it has none."""
    return [layer.mlp if isinstance(layer.mlp, ExpertsSpec) else None for layer in spec.layers]


def test_mixtral() -> None:
    spec = read_spec(edited("mixtral"))
    assert mixtures(spec) == [ExpertsSpec(8, 2, 14336)] * 2
    attention = spec.layers[0].attention
    assert (attention.window, attention.rope) == (None, RopeSpec(1e6, 128))
    silent = ("rope_theta", "num_key_value_heads", "num_experts_per_tok", "num_local_experts")
    assert read_spec(edited("mixtral", **dict.fromkeys(silent, ...))) == spec
    assert read_spec(edited("mixtral", num_local_experts=..., num_experts=8)) == spec


def test_qwen2_moe() -> None:
    spec = read_spec(edited("qwen2_moe"))
    shared = SharedExpertSpec(5632, gated=True)
    experts = ExpertsSpec(60, 4, 1408, routing=Routing(normalize=False), shared=shared)
    assert mixtures(spec) == [experts] * 2
    assert (spec.layers[0].attention.qkv_bias, spec.layers[0].attention.output_bias) == (
        True,
        False,
    )
    some = read_spec(edited("qwen2_moe", num_hidden_layers=5, decoder_sparse_step=2))
    assert [each is not None for each in mixtures(some)] == [False, True, False, True, False]
    assert some.layers[0].mlp == MlpSpec(5632)


def test_qwen2_moe_windows() -> None:
    """Every other layer before ``max_window_layers``; transformers writes 0 for none."""
    changes = {"num_hidden_layers": 6, "use_sliding_window": True, "max_window_layers": 4}
    spec = read_spec(edited("qwen2_moe", **changes))
    assert [layer.attention.window for layer in spec.layers] == [
        *(32768, None, 32768, None),
        *(None, None),
    ]
    assert read_spec(edited("qwen2_moe", sliding_window=0)) == read_spec(edited("qwen2_moe"))


def test_granitemoe() -> None:
    spec = read_spec(edited("granitemoe"))
    routing = Routing("softmax_chosen", normalize=False)
    assert mixtures(spec) == [ExpertsSpec(32, 8, 512, routing=routing)] * 2
    assert (spec.layers[0].attention.scale, spec.layers[0].residual_scale) == (0.015625, 0.22)
    assert spec.logits_scale == 1 / 6
    assert spec.architecture == "GraniteMoeForCausalLM"


def test_gpt_oss() -> None:
    spec = read_spec(edited("gpt_oss"))
    experts = ExpertsSpec(
        num_experts=32,
        top_k=4,
        intermediate_size=2880,
        activation=ClampedSwiglu(7.0, 1.702),
        routing=Routing("softmax_chosen", normalize=False, bias=True),
        bias=True,
    )
    assert mixtures(spec) == [experts] * 2
    windowed, full = (layer.attention for layer in spec.layers)
    assert (windowed.window, full.window, full.sinks, full.output_bias) == (128, None, True, True)
    assert full.rope is not None
    assert (full.rope.kind, full.rope.truncate, full.rope.theta) == ("yarn", False, 150000)
    assert spec.quantized is not None
    assert str(spec.quantized) == "experts alone, MXFP4 read as floats"
    gate = spec.quantized.matrix("layers.0.experts.gate", 2880)
    assert gate == Mxfp4("_blocks", "_scales", in_groups=True)
    assert spec.quantized.matrix("layers.0.q", 2880) is None
    silent = ("rope_scaling", "layer_types", "head_dim", "sliding_window", "attention_bias")
    assert read_spec(edited("gpt_oss", **dict.fromkeys(silent, ...))) == spec
    assert read_spec(edited("gpt_oss", rope_scaling=None, rope_parameters=None)) == spec
    whole = edited("gpt_oss", layer_types=["full_attention"] * 2, sliding_window=None)
    assert [layer.attention.window for layer in read_spec(whole).layers] == [None, None]


def test_glm4_moe() -> None:
    spec = read_spec(edited("glm4_moe"))
    routing = Routing(
        scores="sigmoid",
        normalize_eps=1e-20,
        scale=2.5,
        group_score="top2",
        choice_bias=True,
    )
    experts = ExpertsSpec(160, 8, 1536, routing=routing, shared=SharedExpertSpec(1536))
    assert mixtures(spec) == [None] * 3 + [experts] * 2
    attention = spec.layers[0].attention
    assert (attention.rope, attention.qk_norm) == (RopeSpec(1e6, 64), QkNormSpec(1e-5))
    assert (attention.qkv_bias, attention.output_bias) == (True, False)
    assert read_spec(edited("glm4_moe", partial_rotary_factor=...)) == spec
    renamed = {"num_nextn_predict_layers": ..., "num_mtp_layers": 1}
    assert read_spec(edited("glm4_moe", **renamed)) == spec


def test_glm4_moe_layers_that_predict_further_tokens_are_left_out() -> None:
    names = read_spec(edited("glm4_moe", num_nextn_predict_layers=2)).names
    assert names is not None
    assert names.is_idle("model.layers.5.eh_proj.weight")
    assert names.is_idle("model.layers.6.mlp.experts.3.up_proj.weight")
    for wanted in ("model.layers.4.mlp.gate.weight", "model.layers.7.eh_proj.weight"):
        assert not names.is_idle(wanted)
    none = read_spec(edited("glm4_moe", num_nextn_predict_layers=0)).names
    assert none is not None
    assert not none.is_idle("model.layers.5.eh_proj.weight")


def test_dots1() -> None:
    spec = read_spec(edited("dots1"))
    glm = mixtures(read_spec(edited("glm4_moe")))[-1]
    assert glm is not None
    shared = SharedExpertSpec(2816)
    experts = ExpertsSpec(128, 6, 1408, routing=glm.routing, shared=shared)
    assert mixtures(spec) == [None, experts, experts]
    assert spec.layers[0].attention.qk_norm == QkNormSpec(1e-5)
    assert [layer.attention.window for layer in spec.layers] == [None] * 3
    behind = read_spec(
        edited("dots1", sliding_window=9, max_window_layers=2, use_sliding_window=...)
    )
    assert [layer.attention.window for layer in behind.layers] == [None, None, 9]


def test_minimax_m2() -> None:
    spec = read_spec(edited("minimax_m2"))
    assert (
        mixtures(spec)
        == [ExpertsSpec(256, 8, 1536, routing=Routing("sigmoid", choice_bias=True))] * 2
    )
    attention = spec.layers[0].attention
    assert (attention.rope, attention.qk_norm) == (
        RopeSpec(5e6, 64),
        QkNormSpec(1e-6, "projection"),
    )


def test_ernie4_5_moe() -> None:
    spec = read_spec(edited("ernie4_5_moe"))
    routing = Routing(normalize_least=1e-12, choice_bias=True)
    experts = ExpertsSpec(64, 6, 1536, routing=routing, shared=SharedExpertSpec(3072))
    assert mixtures(spec) == [None, experts, experts]
    assert spec.layers[0].attention.rope == RopeSpec(5e5, 128, interleaved=True)
    assert spec.names is not None
    assert spec.names.is_idle("model.mtp_block.0.mlp.gate_proj.weight")
    to_the_end = read_spec(edited("ernie4_5_moe", moe_layer_end_index=-1))
    assert to_the_end == spec


def test_phimoe() -> None:
    spec = read_spec(edited("phimoe"))
    routing = Routing("sparsemixer", normalize=False, jitter=0.01)
    assert mixtures(spec) == [ExpertsSpec(16, 2, 6400, routing=routing)] * 2
    layer = spec.layers[0]
    assert layer.attn_norm is not None
    assert (layer.attn_norm.kind, layer.attn_norm.bias, spec.head_bias) == ("layer", True, True)
    assert layer.attention.rope is not None
    assert layer.attention.rope.attention_factor == 1.243163121016122
    other = read_spec(edited("phimoe", architectures=["PhimoeForCausalLM"]))
    assert other == spec


def test_olmoe() -> None:
    spec = read_spec(edited("olmoe"))
    assert mixtures(spec) == [ExpertsSpec(64, 8, 1024, routing=Routing(normalize=False))] * 2
    assert spec.layers[0].attention.qk_norm == QkNormSpec(1e-5, "projection")


def test_llama4() -> None:
    spec = read_spec(edited("llama4_text"))
    experts = ExpertsSpec(
        num_experts=16,
        top_k=1,
        intermediate_size=8192,
        routing=Routing("sigmoid", normalize=False),
        shared=SharedExpertSpec(8192),
        shares_on="inputs",
    )
    assert mixtures(spec) == [experts] * 5
    turned, plain = spec.layers[0].attention, spec.layers[3].attention
    assert [layer.attention.window for layer in spec.layers] == [
        *[Chunk(8192)] * 3,
        None,
        Chunk(8192),
    ]
    assert turned.rope is not None
    assert (turned.rope.interleaved, turned.rope.kind, plain.rope) == (True, "llama3", None)
    assert turned.qk_norm == QkNormSpec(1e-5, weight=False, after_rope=True)
    assert (turned.position_scale, plain.position_scale) == (None, PositionScale(0.1, 8192, 1))
    assert plain.qk_norm is None
    for tuned in (True, ...):
        assert read_spec(edited("llama4_text", attn_temperature_tuning=tuned)) == spec
    untuned = read_spec(edited("llama4_text", attn_temperature_tuning=False))
    assert untuned.layers[3].attention.position_scale is None


def test_llama4_with_dense_layers() -> None:
    every_other = read_spec(edited("llama4_text", interleave_moe_layer_step=2))
    assert [each is not None for each in mixtures(every_other)] == [False, True, False, True, False]
    assert every_other.layers[0].mlp == MlpSpec(16384)
    named = read_spec(edited("llama4_text", moe_layers=[0, 4]))
    assert [each is not None for each in mixtures(named)] == [True, False, False, False, True]
    assert mixtures(read_spec(edited("llama4_text", moe_layers=[]))) == [None] * 5


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok .9. must be from 1 to 8"),
        ("mixtral", {"num_experts_per_tok": 0}, "from 1 to 8"),
        ("mixtral", {"num_experts": 4}, "num_local_experts .8. contradicts num_experts 4"),
        ("mixtral", {"attention_bias": True}, "must be false"),
        ("qwen2_moe", {"layer_types": ["sliding_attention"] * 2}, "use_sliding_window is false"),
        (
            "qwen2_moe",
            {"layer_types": ["sliding_attention"] * 2, "use_sliding_window": True}
            | {"sliding_window": None},
            "sliding_window .* must be given",
        ),
        ("qwen2_moe", {"num_experts_per_tok": 61}, "from 1 to 60"),
        ("qwen2_moe", {"shared_expert_intermediate_size": ...}, "is required"),
        ("granitemoe", {"mlp_bias": True}, "experts have no biases"),
        ("granitemoe", {"residual_multiplier": 0}, "residual_multiplier"),
        ("gpt_oss", {"hidden_act": "gelu"}, "must be 'silu'"),
        ("gpt_oss", {"swiglu_limit": 0}, "swiglu_limit"),
        ("gpt_oss", {"layer_types": ["full_attention"]}, "must be 2 times"),
        ("gpt_oss", {"quantization_config": {"quant_method": "hqq"}}, "is not supported"),
        ("gpt_oss", {"quantization_config": {"quant_method": "mxfp4", "bits": 4}}, "bits"),
        ("glm4_moe", {"n_group": 7}, "n_group .7. must divide the 160 experts"),
        ("glm4_moe", {"n_group": 160}, "at least two experts in a group"),
        ("glm4_moe", {"n_group": 4, "topk_group": 5}, "topk_group .5. must be from 1 to 4"),
        ("glm4_moe", {"n_group": 40}, "topk_group .1. times the 4 experts"),
        ("glm4_moe", {"num_experts_per_tok": 161}, "from 1 to 160"),
        ("glm4_moe", {"routed_scaling_factor": 0}, "routed_scaling_factor"),
        ("dots1", {"moe_layer_freq": 2}, "must be 1"),
        ("dots1", {"n_shared_experts": None}, "n_shared_experts .* is required"),
        ("dots1", {"sliding_window": 9, "max_window_layers": 2}, "use_sliding_window .False."),
        ("minimax_m2", {"scoring_func": "softmax"}, "must be 'sigmoid'"),
        ("minimax_m2", {"use_routing_bias": False}, "must be True"),
        ("minimax_m2", {"attn_type_list": [0, 1]}, "must be 1 for every layer"),
        ("minimax_m2", {"shared_intermediate_size": 4096}, "must be 0"),
        ("minimax_m2", {"rotary_dim": 129}, "partial_rotary_factor|rotary_dim"),
        ("ernie4_5_moe", {"moe_k": 65}, "moe_k .65. must be from 1 to 64"),
        ("ernie4_5_moe", {"moe_gate": "dense"}, "must be 'topk'"),
        ("ernie4_5_moe", {"moe_use_aux_free": False}, "must be true"),
        ("ernie4_5_moe", {"num_experts": 3}, "contradicts"),
        ("phimoe", {"num_experts_per_tok": 3}, "must be 2"),
        ("phimoe", {"num_local_experts": 1}, "at least 2"),
        ("phimoe", {"rope_scaling": {"type": "yarn"}}, "default, longrope"),
        ("olmoe", {"num_experts_per_tok": 65}, "from 1 to 64"),
        ("olmoe", {"clip_qkv": -1.0}, "clip_qkv .* must be greater than 0"),
        ("llama4_text", {"num_experts_per_tok": 17}, "from 1 to 16"),
        ("llama4_text", {"moe_layers": [5]}, "integers from 0 to 4"),
        ("llama4_text", {"interleave_moe_layer_step": 0}, "interleave_moe_layer_step .0."),
        ("llama4_text", {"num_local_experts": 0}, "num_local_experts .0. must be from 1"),
        ("ernie4_5_moe", {"use_rmsnorm": False}, "must be true"),
        ("llama4_text", {"no_rope_layers": [1, 0]}, "a number for each of 5 layers"),
        ("llama4_text", {"no_rope_layers": [2] * 5}, "integers from 0 to 1"),
        ("llama4_text", {"layer_types": ["sliding_attention"] * 5}, "'chunked_attention' or"),
        ("llama4_text", {"attention_chunk_size": 0}, "attention_chunk_size"),
        ("llama4_text", {"attn_temperature_tuning": "yes"}, "must be true or false"),
    ],
)
def test_refused(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_spec(edited(family, **changes))


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        ({"num_experts": 4, "top_k": 5}, "5 of 4 experts"),
        ({"num_experts": 4, "top_k": 0}, "0 of 4 experts"),
        ({"num_experts": 5, "routing": Routing(groups=2)}, "do not divide into 2"),
        ({"num_experts": 6, "top_k": 3, "routing": Routing(groups=3)}, "3 experts out of 1 of 3"),
        ({"routing": Routing(groups=2, groups_chosen=3)}, "out of 3 of 2"),
        ({"num_experts": 2, "routing": Routing(groups=2, group_score="top2")}, "two highest"),
        ({"routing": Routing("sparsemixer", groups=2)}, "by their logits alone"),
    ],
)
def test_mixtures_that_cannot_be_are_refused(experts: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        ExpertsSpec(**{"num_experts": 4, "top_k": 1, "intermediate_size": 8, **experts})
