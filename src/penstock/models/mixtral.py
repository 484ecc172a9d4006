"""Mixtral: Mistral whose MLPs are mixtures of experts."""

from __future__ import annotations

from penstock.models.blocks import (
    default_head_dim,
    read_activation,
    read_decoder,
    read_positions,
    uniform_windows,
)
from penstock.models.mixtures import MIXTRAL_NAMES as NAMES
from penstock.models.mixtures import (
    ignore_training,
    read_expert_size,
    read_num_experts,
    read_top_k,
    with_experts,
)
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields, read_rope
from penstock.models.spec import DType, ExpertsSpec, ModelSpec

__all__ = ["ARCHITECTURE", "MODEL_TYPE", "NAMES", "read"]

ARCHITECTURE = "MixtralForCausalLM"
MODEL_TYPE = "mixtral"


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    for name in ("attention_bias", "mlp_bias"):
        config.only(name, False, "must be false: Mixtral has no biases")
    ignore_training(config)
    head_dim = default_head_dim(config)
    rope = read_rope(config, head_dim, read_positions(config), RopeFields(default_theta=1e6))
    spec = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=head_dim,
        num_kv_heads=config.integer("num_key_value_heads", 8),
        windows=uniform_windows(config, config.optional_integer("sliding_window")),
        rope=rope,
    )
    number = read_num_experts(config, "num_local_experts", "num_experts")
    return with_experts(
        spec,
        ExpertsSpec(
            num_experts=number,
            top_k=read_top_k(config, number, default=2),
            intermediate_size=read_expert_size(config, "intermediate_size"),
            activation=read_activation(config),
        ),
    )
