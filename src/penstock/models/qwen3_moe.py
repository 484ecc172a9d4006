"""Qwen3 with experts: Qwen3 whose layers, or some of them, are mixtures of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import read_activation, read_decoder, uniform_windows
from penstock.models.limits import MAX_EXPERTS, MAX_HEAD_DIM, MAX_INTERMEDIATE
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.names import NameMap, plain
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ExpertsSpec, ModelSpec, Routing

ARCHITECTURE = "Qwen3MoeForCausalLM"
MODEL_TYPE = "qwen3_moe"
NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | plain(
        {
            "layers.*.router": "model.layers.*.mlp.gate",
            "layers.*.experts.gate": "model.layers.*.mlp.experts.#.gate_proj",
            "layers.*.experts.up": "model.layers.*.mlp.experts.#.up_proj",
            "layers.*.experts.down": "model.layers.*.mlp.experts.#.down_proj",
        }
    ),
    LLAMA_NAMES.idle,
)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    bias = config.boolean("attention_bias", False)
    config.only("mlp_bias", False, "must be false: Qwen3 has no MLP biases")
    for name in ("output_router_logits", "router_aux_loss_coef"):  # of training
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
        head_dim=config.integer("head_dim", high=MAX_HEAD_DIM),
        num_kv_heads=config.integer("num_key_value_heads"),
        windows=uniform_windows(config, window),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
    )
    experts, dense = _experts(config), config.integers("mlp_only_layers")
    step = config.integer("decoder_sparse_step", 1)
    return replace(
        spec,
        layers=tuple(
            layer if i in dense or (i + 1) % step else replace(layer, mlp=experts)
            for i, layer in enumerate(spec.layers)
        ),
    )


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
        top_k=config.integer("num_experts_per_tok", high=number),
        intermediate_size=config.integer("moe_intermediate_size", high=MAX_INTERMEDIATE),
        activation=read_activation(config),
        routing=Routing(normalize=config.boolean("norm_topk_prob", False)),
    )
