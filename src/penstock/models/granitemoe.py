"""Granite 3 with experts: Llama with multipliers and mixtures, whose shares are of the chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_activation,
    read_decoder,
    uniform_windows,
)
from penstock.models.limits import MAX_FACTOR
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.mixtures import (
    DOWN,
    GATE,
    UP,
    ignore_training,
    read_expert_size,
    read_num_experts,
    read_top_k,
    together,
    with_experts,
)
from penstock.models.names import NameMap, either, plain, stacked
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, EmbeddingScale, ExpertsSpec, ModelSpec, Routing

ARCHITECTURE = "GraniteMoeForCausalLM"
MODEL_TYPE = "granitemoe"
_BLOCK: Final = "model.layers.*.block_sparse_moe"
NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | either(
        plain({"layers.*.router": f"{_BLOCK}.router.layer"})
        | stacked(f"{_BLOCK}.input_linear", GATE, UP, suffix=".weight")
        | stacked(f"{_BLOCK}.output_linear", DOWN, suffix=".weight"),
        plain({"layers.*.router": f"{_BLOCK}.router"}) | together(f"{_BLOCK}.experts"),
    ),
    LLAMA_NAMES.idle,
)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config.only("mlp_bias", False, "must be false: Granite's experts have no biases")
    ignore_training(config)
    bias = config.boolean("attention_bias", False)
    spec = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=config.integer("num_key_value_heads", config.integer("num_attention_heads")),
        windows=uniform_windows(config, None),
        qkv_bias=bias,
        output_bias=bias,
    )
    number = read_num_experts(config, "num_local_experts", "num_experts")
    experts = ExpertsSpec(
        num_experts=number,
        top_k=read_top_k(config, number, default=2),
        intermediate_size=read_expert_size(config, "intermediate_size"),
        activation=read_activation(config),
        routing=Routing("softmax_chosen", normalize=False),
    )
    attention, residual = _factor(config, "attention"), _factor(config, "residual")
    spec = replace(
        spec,
        layers=tuple(
            replace(
                layer,
                attention=replace(layer.attention, scale=attention),
                residual_scale=residual,
            )
            for layer in spec.layers
        ),
        embedding_scale=EmbeddingScale(_factor(config, "embedding")),
        logits_scale=1.0 / config.number("logits_scaling", 1.0, high=MAX_FACTOR),
    )
    return with_experts(spec, experts)


def _factor(config: ConfigReader, of: str) -> float:
    return config.number(f"{of}_multiplier", 1.0, high=MAX_FACTOR)
