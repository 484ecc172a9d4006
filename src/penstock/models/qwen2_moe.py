"""Qwen2 with experts, and one that every token is given to, through a gate of its own."""

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
from penstock.models.mixtures import (
    MLP,
    QWEN_NAMES,
    TRAINING,
    read_expert_size,
    read_num_experts,
    read_top_k,
    shared_names,
    with_experts,
)
from penstock.models.names import NameMap, plain
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ExpertsSpec, ModelSpec, Routing, SharedExpertSpec

ARCHITECTURE = "Qwen2MoeForCausalLM"
MODEL_TYPE = "qwen2_moe"
KNOWN_AS = "Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B"
NAMES: Final = NameMap(
    dict(QWEN_NAMES.names)
    | shared_names(f"{MLP}.shared_expert")
    | plain({"layers.*.shared.share": f"{MLP}.shared_expert_gate"}),
    QWEN_NAMES.idle,
)

_DEFAULTS: Final = {
    "max_position_embeddings": 32768,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "rms_norm_eps": 1e-6,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({"num_experts": "num_local_experts"}, _DEFAULTS, TRAINING)
    config.only("mlp_bias", False, "must be false: Qwen2 has no MLP biases")
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=_windows(config),
        qkv_bias=config.boolean("qkv_bias", True),
    )
    number = read_num_experts(config)
    shared = read_expert_size(config, "shared_expert_intermediate_size")
    experts = ExpertsSpec(
        num_experts=number,
        top_k=read_top_k(config, number),
        intermediate_size=read_expert_size(config),
        activation=read_activation(config),
        routing=Routing(normalize=config.boolean("norm_topk_prob", False)),
        shared=SharedExpertSpec(shared, gated=True),
    )
    dense, step = config.integers("mlp_only_layers"), config.integer("decoder_sparse_step", 1)
    return with_experts(model, experts, lambda i: i not in dense and (i + 1) % step == 0)


def _windows(config: ConfigReader) -> tuple[int | None, ...]:
    """Windows by ``layer_types``, else on every other layer before ``max_window_layers``, as
    transformers has them, which writes a window of 0 where there is none."""
    layers, sliding = read_num_layers(config), config.boolean("use_sliding_window", False)
    size = config.optional_integer("sliding_window", low=0)
    end = config.integer("max_window_layers", 28, low=0)
    kinds = read_layer_kinds(
        config,
        [SLIDING if sliding and i < end and i % 2 == 0 else FULL for i in range(layers)],
    )
    if SLIDING in kinds and not sliding:
        raise config.error("layer_types", f"has {SLIDING!r}, but use_sliding_window is false")
    if SLIDING in kinds and not size:
        raise config.error("sliding_window", "must be given where use_sliding_window is true")
    return windows_of(kinds, size)
