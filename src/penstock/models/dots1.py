"""dots.llm1: experts that are routed as DeepSeek V3's are, and norms of queries and keys."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import (
    FULL,
    SLIDING,
    default_head_dim,
    read_activation,
    read_decoder,
    read_kv_heads,
    read_layer_kinds,
    read_num_layers,
    windows_of,
)
from penstock.models.glm4_moe import NAMES as GLM_NAMES
from penstock.models.limits import MAX_LAYERS
from penstock.models.mixtures import (
    TRAINING,
    read_corrected_routing,
    read_expert_size,
    read_num_experts,
    read_top_k,
    with_experts,
)
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ExpertsSpec, ModelSpec, SharedExpertSpec

ARCHITECTURE = "Dots1ForCausalLM"
MODEL_TYPE = "dots1"
KNOWN_AS = "dots.llm1"
NAMES: Final = GLM_NAMES
IDLE: Final = frozenset({"pretraining_tp", "scoring_func", "topk_method"})

_DEFAULTS: Final = {
    "max_position_embeddings": 2048,
    "max_window_layers": 62,
    "norm_topk_prob": False,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({"num_experts": "n_routed_experts"}, _DEFAULTS, TRAINING)
    config.only("moe_layer_freq", 1, "must be 1: all layers but the first have experts")
    window = config.optional_integer("sliding_window")
    first = config.integer("max_window_layers", low=0)
    windowed = (window is not None and i >= first for i in range(read_num_layers(config)))
    kinds = read_layer_kinds(config, [SLIDING if each else FULL for each in windowed])
    if SLIDING in kinds:
        config.only("use_sliding_window", True, "is false, but layers have a window")
        window = config.integer("sliding_window")
    config.raw("use_sliding_window")
    bias = config.boolean("attention_bias", False)
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=windows_of(kinds, window),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
    )
    number = read_num_experts(config)
    top_k, size = read_top_k(config, number), read_expert_size(config)
    experts = ExpertsSpec(
        num_experts=number,
        top_k=top_k,
        intermediate_size=size,
        activation=read_activation(config),
        routing=read_corrected_routing(config, number, top_k),
        shared=SharedExpertSpec(size * config.integer("n_shared_experts")),
    )
    dense = config.integer("first_k_dense_replace", 0, low=0, high=MAX_LAYERS)
    return with_experts(model, experts, lambda i: i >= dense)
