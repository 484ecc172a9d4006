"""InternLM3: Llama, whose configuration has other names for its biases."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_decoder,
    read_kv_heads,
    uniform_windows,
)
from penstock.models.llama import NAMES as NAMES
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "InternLM3ForCausalLM"
MODEL_TYPE = "internlm3"
KNOWN_AS = "InternLM3 8B"

_DEFAULTS: Final = {
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({"attention_bias": "qkv_bias", "mlp_bias": "bias"}, _DEFAULTS)
    bias = config.boolean("mlp_bias", False)
    return read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, None),
        qkv_bias=config.boolean("attention_bias", False),
        output_bias=bias,
        mlp_bias=bias,
    )
