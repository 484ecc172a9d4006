"""OLMoE: experts whose shares need not add up to 1, and norms over all queries and all keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_activation,
    read_decoder,
    read_kv_heads,
    read_norm,
    uniform_windows,
    with_attention,
)
from penstock.models.limits import MAX_FACTOR
from penstock.models.mixtures import (
    QWEN_NAMES,
    TRAINING,
    read_expert_size,
    read_num_experts,
    read_top_k,
    with_experts,
)
from penstock.models.reader import ConfigReader
from penstock.models.spec import ClampSpec, DType, ExpertsSpec, ModelSpec, QkNormSpec, Routing

ARCHITECTURE = "OlmoeForCausalLM"
MODEL_TYPE = "olmoe"
KNOWN_AS = "OLMoE 1B-7B"
NAMES: Final = QWEN_NAMES

_DEFAULTS: Final = {
    "max_position_embeddings": 4096,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "rms_norm_eps": 1e-5,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({"num_experts": "num_local_experts"}, _DEFAULTS, TRAINING)
    config.only("mlp_bias", False, "must be false: experts have no biases")
    limit = config.optional_number("clip_qkv", high=MAX_FACTOR)
    clamp = None if limit is None else ClampSpec(limit, behind_norms=True)
    bias = config.boolean("attention_bias", False)
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, None),
        qkv_bias=bias,
        output_bias=bias,
    )
    norm = QkNormSpec(read_norm(config).eps, over="projection")
    model = with_attention(
        model,
        [replace(each.attention, qk_norm=norm, clamp=clamp) for each in model.layers],
    )
    number = read_num_experts(config)
    experts = ExpertsSpec(
        num_experts=number,
        top_k=read_top_k(config, number),
        intermediate_size=read_expert_size(config, "intermediate_size"),
        activation=read_activation(config),
        routing=Routing(normalize=config.boolean("norm_topk_prob", False)),
    )
    return with_experts(model, experts)
