"""Code World Model: Llama with windows on three layers of four."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import (
    FULL,
    SLIDING,
    default_head_dim,
    read_decoder,
    read_kv_heads,
    read_layer_kinds,
    read_num_layers,
    read_positions,
    windows_of,
)
from penstock.models.llama import NAMES as NAMES
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields, read_own_rope
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "CwmForCausalLM"
MODEL_TYPE = "cwm"
KNOWN_AS = "Code World Model 32B"

_DEFAULTS: Final = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "sliding_window": 8192,
}
_ROPE: Final = RopeFields(default_theta=1_000_000.0)
_LLAMA3: Final = {
    "rope_type": "llama3",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    config.only("attention_bias", False, "must be false: CWM's attention has no biases")
    layers = read_num_layers(config)
    kinds = read_layer_kinds(config, [SLIDING if i % 4 else FULL for i in range(layers)])
    head_dim = default_head_dim(config)
    return read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=head_dim,
        num_kv_heads=read_kv_heads(config),
        windows=windows_of(kinds, config.integer("sliding_window")),
        mlp_bias=config.boolean("mlp_bias", False),
        rope=read_own_rope(config, head_dim, read_positions(config), _ROPE, _LLAMA3),
    )
