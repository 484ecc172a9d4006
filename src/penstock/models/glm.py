"""GLM-4 as transformers has it: gate and up fused, and half of each head rotates, neighbours by
pairs."""

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
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.names import NameMap, fused
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields, read_rope
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "GlmForCausalLM"
MODEL_TYPE = "glm"
KNOWN_AS = "GLM-4-9B (`-hf`), GLM-Edge"
NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | fused("model.layers.*.mlp.gate_up_proj", "layers.*.gate", "layers.*.up"),
    LLAMA_NAMES.idle,
)

_DEFAULTS: Final = {
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1.5625e-07,
}
_ROPE: Final = RopeFields(default_partial=0.5)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    return read_glm(config, ARCHITECTURE, dtype)


def read_glm(config: ConfigReader, architecture: str, dtype: DType) -> ModelSpec:
    """A model of GLM-4's attention, with Llama's norms."""
    config = config.adapted({}, _DEFAULTS)
    head_dim = default_head_dim(config)
    rope = read_rope(config, head_dim, read_positions(config), _ROPE)
    return read_decoder(
        config,
        architecture,
        dtype,
        head_dim=head_dim,
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, None),
        qkv_bias=config.boolean("attention_bias", True),
        rope=replace(rope, interleaved=True),
    )
