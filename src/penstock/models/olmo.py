"""OLMo 1: Llama with LayerNorms that have no weight, and clamped queries, keys and values."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_decoder,
    read_kv_heads,
    uniform_windows,
    with_attention,
)
from penstock.models.limits import MAX_FACTOR
from penstock.models.llama import NAMES as NAMES
from penstock.models.reader import ConfigReader
from penstock.models.spec import ClampSpec, DType, ModelSpec, NormSpec

ARCHITECTURE = "OlmoForCausalLM"
MODEL_TYPE = "olmo"
KNOWN_AS = "OLMo 1B and 7B (the `-hf` checkpoints)"

_DEFAULTS: Final = {"max_position_embeddings": 2048}
_NORM: Final = NormSpec(1e-5, "layer", weight=False)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    bias = config.boolean("attention_bias", False)
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, None),
        qkv_bias=bias,
        output_bias=bias,
        norm=_NORM,
    )
    config.raw("clip_qkv")
    if not config.has("clip_qkv"):
        return model
    limit = config.number("clip_qkv", high=MAX_FACTOR)
    clipped = [replace(layer.attention, clamp=ClampSpec(limit)) for layer in model.layers]
    return with_attention(model, clipped)
