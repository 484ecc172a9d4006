"""Qwen3 with experts: Qwen3 whose layers, or some of them, are mixtures of experts."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import default_head_dim, read_activation, read_decoder, uniform_windows
from penstock.models.limits import MAX_EXPERTS
from penstock.models.mixtures import (
    QWEN_NAMES,
    TRAINING,
    read_expert_size,
    read_top_k,
    with_experts,
)
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ExpertsSpec, ModelSpec, Routing

ARCHITECTURE = "Qwen3MoeForCausalLM"
MODEL_TYPE = "qwen3_moe"
KNOWN_AS = "Qwen3-30B-A3B and 235B-A22B"
TEXT_PARTS: Final = {"qwen3_vl_moe_text": {"norm_topk_prob": True}}
NAMES: Final = QWEN_NAMES


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    bias = config.boolean("attention_bias", False)
    config.only("mlp_bias", False, "must be false: Qwen3 has no MLP biases")
    for name in TRAINING:
        config.raw(name)
    config.raw("max_window_layers")  # of Qwen3; here all layers have the window, or none
    window = config.optional_integer("sliding_window")
    if not config.boolean("use_sliding_window", False):
        window = None
    elif window is None:
        raise config.error("sliding_window", "must be given where use_sliding_window is true")
    spec = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=config.integer("num_key_value_heads"),
        windows=uniform_windows(config, window),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
    )
    dense, step = config.integers("mlp_only_layers"), config.integer("decoder_sparse_step", 1)
    return with_experts(spec, _experts(config), lambda i: i not in dense and (i + 1) % step == 0)


def _experts(config: ConfigReader) -> ExpertsSpec:
    # v4 and v5 of transformers name them differently.
    name = "num_local_experts"
    if config.has("num_experts") or not config.has(name):  # the error names v4's where none is
        name = "num_experts"
    number = config.integer(name, high=MAX_EXPERTS)
    if name == "num_experts":
        config.only("num_local_experts", number, f"contradicts num_experts {number}")
    else:
        config.raw("num_experts")
    return ExpertsSpec(
        num_experts=number,
        top_k=read_top_k(config, number),
        intermediate_size=read_expert_size(config),
        activation=read_activation(config),
        routing=Routing(normalize=config.boolean("norm_topk_prob", False)),
    )
