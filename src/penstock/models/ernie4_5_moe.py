"""Ernie 4.5 with experts: softmax, a bias for the choice alone, and neighbours that are rotated."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_activation,
    read_decoder,
    read_kv_heads,
    read_positions,
    uniform_windows,
)
from penstock.models.limits import MAX_LAYERS
from penstock.models.mixtures import (
    CHOICE_BIAS,
    MLP,
    QWEN_NAMES,
    TRAINING,
    read_expert_size,
    read_num_experts,
    read_top_k,
    shared_names,
    with_experts,
)
from penstock.models.name_forms import OneRow
from penstock.models.names import Name, NameMap, either
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields, read_rope
from penstock.models.spec import DType, ExpertsSpec, ModelSpec, Routing, SharedExpertSpec

ARCHITECTURE = "Ernie4_5_MoeForCausalLM"
MODEL_TYPE = "ernie4_5_moe"
KNOWN_AS = "ERNIE 4.5 21B-A3B and 300B-A47B, text"
_BIAS: Final = "moe_statics.e_score_correction_bias"
NAMES: Final = NameMap(
    dict(QWEN_NAMES.names)
    | shared_names(f"{MLP}.shared_experts")
    | either(
        {CHOICE_BIAS: Name(f"{MLP}.{_BIAS}", suffix="", form=OneRow())},
        {CHOICE_BIAS: Name(f"{MLP}.gate.{_BIAS}", suffix="", form=OneRow())},
    ),
    rf"{QWEN_NAMES.idle}|model\.mtp_.*",
)

_FIELDS: Final = {"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"}
_DEFAULTS: Final = {
    "max_position_embeddings": 131072,
    "num_key_value_heads": 4,
    "num_experts": 64,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1536,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
_IDLE: Final = ("moe_capacity", "num_nextn_predict_layers")  # of training, and of layers left out


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted(_FIELDS, _DEFAULTS, (*TRAINING, *_IDLE))
    config.only("moe_gate", "topk", "must be 'topk': other routers are not supported")
    config.only("use_rmsnorm", True, "must be true: other norms are not supported")
    config.only("is_quantized", False, "must be false: take the checkpoint that is not")
    config.only("moe_use_aux_free", True, "must be true: experts are chosen with a bias")
    bias, head_dim = config.boolean("use_bias", False), default_head_dim(config)
    rope = read_rope(config, head_dim, read_positions(config), RopeFields(default_theta=5e5))
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=head_dim,
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, None),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        rope=replace(rope, interleaved=True),
    )
    number = read_num_experts(config)
    size, shared = read_expert_size(config), config.integer("moe_num_shared_experts", 2, low=0)
    least = config.number("moe_norm_min", 1e-12, low=0.0, high=1.0)
    experts = ExpertsSpec(
        num_experts=number,
        top_k=read_top_k(config, number),
        intermediate_size=size,
        activation=read_activation(config),
        routing=Routing(normalize_least=least, choice_bias=True),
        shared=SharedExpertSpec(size * shared, bias) if shared else None,
    )
    first = config.integer("moe_layer_start_index", 1, low=0, high=MAX_LAYERS)
    last = config.integer("moe_layer_end_index", -1, low=-1, high=MAX_LAYERS)
    step = config.integer("moe_layer_interval", 1)
    end = len(model.layers) if last == -1 else last + 1
    model = replace(model, head_bias=bias)
    return with_experts(model, experts, lambda i: first <= i < end and (i + 1) % step == 0)
