"""Phi-3.5 with experts: LayerNorms, biases, LongRoPE, and experts that sparsemixer chooses."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_activation,
    read_decoder,
    read_kv_heads,
    read_norm,
    read_positions,
    uniform_windows,
)
from penstock.models.limits import MAX_POSITIONS
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.mixtures import (
    BLOCK,
    MLP,
    ROUTER,
    TRAINING,
    one_by_one,
    read_expert_size,
    read_num_experts,
    together,
    with_experts,
)
from penstock.models.names import NameMap, either, plain
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields, read_rope
from penstock.models.spec import DType, ExpertsSpec, ModelSpec, Routing

ARCHITECTURE = "PhimoeForCausalLM"
ALIASES: Final = ("PhiMoEForCausalLM",)
"""What the published files call the architecture."""
MODEL_TYPE = "phimoe"
KNOWN_AS = "Phi-3.5-MoE"
NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | either(
        plain({ROUTER: f"{BLOCK}.gate"}) | one_by_one(f"{BLOCK}.experts", "w1", "w3", "w2"),
        plain({ROUTER: f"{MLP}.router"}) | together(f"{MLP}.experts"),
    ),
    LLAMA_NAMES.idle,
)

_ROPE: Final = RopeFields(default_theta=1e6, kinds=("default", "longrope"))
_DEFAULTS: Final = {
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "rms_norm_eps": 1e-5,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({"num_experts": "num_local_experts"}, _DEFAULTS, TRAINING)
    config.only("mlp_bias", False, "must be false: experts have no biases")
    bias, head_dim = config.boolean("attention_bias", False), default_head_dim(config)
    original = config.optional_integer("original_max_position_embeddings", high=MAX_POSITIONS)
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=head_dim,
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, config.optional_integer("sliding_window")),
        qkv_bias=bias,
        output_bias=bias,
        norm=read_norm(config, kind="layer", bias=True),
        rope=read_rope(config, head_dim, read_positions(config), _ROPE, original),
    )
    number = read_num_experts(config)
    config.only("num_experts_per_tok", 2, "must be 2, which is how many sparsemixer chooses")
    if number < 2:
        raise config.error("num_experts", "must be at least 2, which is how many are chosen")
    jitter = config.number("router_jitter_noise", 0.01, low=0.0, high=1.0)
    experts = ExpertsSpec(
        num_experts=number,
        top_k=2,
        intermediate_size=read_expert_size(config, "intermediate_size"),
        activation=read_activation(config),
        routing=Routing("sparsemixer", normalize=False, jitter=jitter),
    )
    model = replace(model, head_bias=config.boolean("lm_head_bias", False))
    return with_experts(model, experts)
