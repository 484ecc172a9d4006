"""Helium: Llama whose neighbouring components rotate together."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_decoder,
    read_kv_heads,
    read_positions,
    uniform_windows,
)
from penstock.models.llama import NAMES as NAMES
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields, read_rope
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "HeliumForCausalLM"
MODEL_TYPE = "helium"
KNOWN_AS = "Helium 1 2B"

_DEFAULTS: Final = {
    "num_key_value_heads": 20,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-8,
}
_ROPE: Final = RopeFields(default_theta=100_000.0)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    head_dim = default_head_dim(config)
    rope = read_rope(config, head_dim, read_positions(config), _ROPE)
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=head_dim,
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, None),
        qkv_bias=config.boolean("attention_bias", False),
        mlp_bias=config.boolean("mlp_bias", False),
        rope=replace(rope, interleaved=True),
    )
    if model.layers[0].attention.num_heads * head_dim != model.hidden_size:
        raise config.error("head_dim", "times num_attention_heads must be hidden_size")
    return model
