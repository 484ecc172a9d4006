"""Mixtral: Mistral whose MLPs are mixtures of experts."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_activation,
    read_decoder,
    uniform_windows,
)
from penstock.models.mixtures import (
    MIXTRAL_NAMES,
    TRAINING,
    read_expert_size,
    read_num_experts,
    read_top_k,
    with_experts,
)
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields
from penstock.models.spec import DType, ExpertsSpec, ModelSpec

ARCHITECTURE = "MixtralForCausalLM"
MODEL_TYPE = "mixtral"
KNOWN_AS = "Mixtral 8x7B and 8x22B"
NAMES: Final = MIXTRAL_NAMES

_DEFAULTS: Final = {
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "rms_norm_eps": 1e-5,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({"num_experts": "num_local_experts"}, _DEFAULTS, TRAINING)
    for name in ("attention_bias", "mlp_bias"):
        config.only(name, False, "must be false: Mixtral has no biases")
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=config.integer("num_key_value_heads"),
        windows=uniform_windows(config, config.optional_integer("sliding_window")),
        rope_fields=RopeFields(default_theta=1e6),
    )
    number = read_num_experts(config)
    experts = ExpertsSpec(
        num_experts=number,
        top_k=read_top_k(config, number),
        intermediate_size=read_expert_size(config, "intermediate_size"),
        activation=read_activation(config),
    )
    return with_experts(model, experts)
