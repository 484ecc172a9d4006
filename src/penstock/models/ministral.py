"""Ministral 8B of 2024: Mistral with a window on some layers."""

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
    windows_of,
)
from penstock.models.llama import NAMES as NAMES
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "MinistralForCausalLM"
MODEL_TYPE = "ministral"
KNOWN_AS = "Ministral 8B of 2024"

_DEFAULTS: Final = {
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    for name in ("attention_bias", "mlp_bias"):
        config.only(name, False, "must be false: Ministral has no biases")
    window = config.optional_integer("sliding_window")
    default = FULL if window is None else SLIDING
    kinds = read_layer_kinds(config, (default,) * read_num_layers(config))
    if window is None and SLIDING in kinds:
        raise config.error("layer_types", f"has {SLIDING!r}, but sliding_window is null")
    return read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=windows_of(kinds, window),
    )
