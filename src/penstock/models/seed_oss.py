"""Seed-OSS: Llama with biases of its own for queries, keys and values, the output and the MLP."""

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

ARCHITECTURE = "SeedOssForCausalLM"
MODEL_TYPE = "seed_oss"
KNOWN_AS = "Seed-OSS 36B"
IDLE: Final = frozenset({"pretraining_tp", "residual_dropout"})
"""What is of training, and what transformers does not read."""

_DEFAULTS: Final = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 524288,
    "rms_norm_eps": 1e-6,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    return read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, None),
        qkv_bias=config.boolean("attention_bias", True),
        output_bias=config.boolean("attention_out_bias", False),
        mlp_bias=config.boolean("mlp_bias", False),
    )
