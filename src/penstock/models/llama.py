"""Llama 2 and 3, and the many models that use their architecture."""

from __future__ import annotations

from penstock.models.blocks import default_head_dim, read_decoder, uniform_windows
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "LlamaForCausalLM"
MODEL_TYPE = "llama"


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    bias = config.boolean("attention_bias", False)
    config.only("sliding_window", None, "is not supported: Llama attends to the whole context")
    return read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=config.integer("num_key_value_heads", config.integer("num_attention_heads")),
        windows=uniform_windows(config, None),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.boolean("mlp_bias", False),
    )
