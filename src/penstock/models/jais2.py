"""Jais 2: Llama with LayerNorms, biases, and an MLP that has no gate and squares what is
positive."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_decoder,
    read_kv_heads,
    read_norm,
    uniform_windows,
)
from penstock.models.llama import NAMES as NAMES
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "Jais2ForCausalLM"
MODEL_TYPE = "jais2"
KNOWN_AS = "Jais 2 8B and 70B"

_DEFAULTS: Final = {
    "hidden_act": "relu2",
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    bias = config.boolean("attention_bias", True)
    return read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, None),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.boolean("mlp_bias", True),
        gated=False,
        norm=read_norm(config, "layer_norm_eps", "layer", bias=True),
    )
