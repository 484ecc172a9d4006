"""StarCoder2: LayerNorms, biases, a plain MLP, and one window for all layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_attention,
    read_mlp,
    read_model,
    read_norm,
    read_positions,
    uniform_windows,
)
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.names import NameMap, plain
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import extended_positions, read_rope
from penstock.models.spec import DType, LayerSpec, ModelSpec

ARCHITECTURE = "Starcoder2ForCausalLM"
MODEL_TYPE = "starcoder2"
KNOWN_AS = "StarCoder2 3B, 7B and 15B"
NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | plain(
        {"layers.*.up": "model.layers.*.mlp.c_fc", "layers.*.down": "model.layers.*.mlp.c_proj"}
    ),
    LLAMA_NAMES.idle,
)

_IDLE: Final = """
    activation_function attention_softmax_in_fp32 embedding_dropout layer_norm_epsilon
    residual_dropout scale_attention_softmax_in_fp32
"""
IDLE: Final = frozenset(_IDLE.split())
"""Fields of training, and what is published under older names besides."""

_DEFAULTS: Final = {
    "num_key_value_heads": 2,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 4096,
    "norm_epsilon": 1e-5,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config.only("norm_type", "layer_norm", "must be layer_norm: it is what StarCoder2 has")
    config.only("mlp_type", "default", "must be default: it is what StarCoder2 has")
    config.only("scale_attn_weights", True, "must be true: scores are always scaled")
    config = config.adapted({}, _DEFAULTS)
    head_dim, positions = default_head_dim(config), read_positions(config)
    rope, norm = (
        read_rope(config, head_dim, positions),
        read_norm(config, "norm_epsilon", "layer", True),
    )
    bias = config.boolean("use_bias", True)
    attention = replace(
        read_attention(config, head_dim, config.integer("num_key_value_heads")),
        rope=rope,
        qkv_bias=bias,
        output_bias=bias,
    )
    mlp = read_mlp(config, bias=bias, gated=False)
    windows = uniform_windows(config, config.optional_integer("sliding_window"))
    return read_model(
        config,
        ARCHITECTURE,
        dtype,
        layers=[LayerSpec(replace(attention, window=each), mlp, norm, norm) for each in windows],
        final_norm=norm,
        max_positions=extended_positions(rope, positions),
        tie_embeddings=True,
    )
