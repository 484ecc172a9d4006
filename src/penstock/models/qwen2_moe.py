"""Qwen2 with experts, one of which every token is given to, through a gate of its own."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import (
    FULL,
    SLIDING,
    default_head_dim,
    read_activation,
    read_decoder,
    read_num_layers,
)
from penstock.models.limits import MAX_INTERMEDIATE
from penstock.models.mixtures import (
    MLP,
    QWEN_NAMES,
    ignore_training,
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
NAMES: Final = NameMap(
    dict(QWEN_NAMES.names)
    | shared_names(f"{MLP}.shared_expert")
    | plain({"layers.*.shared.share": f"{MLP}.shared_expert_gate"}),
    QWEN_NAMES.idle,
)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config.only("mlp_bias", False, "must be false: Qwen2 has no MLP biases")
    ignore_training(config)
    spec = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=config.integer("num_key_value_heads", config.integer("num_attention_heads")),
        windows=_windows(config),
        qkv_bias=config.boolean("qkv_bias", True),
    )
    number = read_num_experts(config, "num_experts", "num_local_experts")
    experts = ExpertsSpec(
        num_experts=number,
        top_k=read_top_k(config, number, default=4),
        intermediate_size=read_expert_size(config),
        activation=read_activation(config),
        routing=Routing(normalize=config.boolean("norm_topk_prob", False)),
        shared=SharedExpertSpec(
            config.integer("shared_expert_intermediate_size", high=MAX_INTERMEDIATE), gated=True
        ),
    )
    dense, step = config.integers("mlp_only_layers"), config.integer("decoder_sparse_step", 1)
    return with_experts(spec, experts, lambda i: i not in dense and (i + 1) % step == 0)


def _windows(config: ConfigReader) -> tuple[int | None, ...]:
    """Windows by ``layer_types``, else on every other layer before ``max_window_layers``, as
    transformers has them; it writes a window of 0 where there is none."""
    layers, sliding = read_num_layers(config), config.boolean("use_sliding_window", False)
    size = config.optional_integer("sliding_window", low=0) or None
    first = config.integer("max_window_layers", 28, low=0)
    types = config.texts("layer_types")
    if types is None:
        types = tuple(
            SLIDING if sliding and i < first and i % 2 == 0 else FULL for i in range(layers)
        )
    if len(types) != layers or not set(types) <= {FULL, SLIDING}:
        raise config.error("layer_types", f"must be {layers} times {FULL!r} or {SLIDING!r}")
    if SLIDING in types and not sliding:
        raise config.error("layer_types", f"has {SLIDING!r}, but use_sliding_window is false")
    if SLIDING in types and size is None:
        raise config.error("sliding_window", "must be given where layers have one")
    return tuple(size if kind == SLIDING else None for kind in types)
