"""Granite 3 and later: Llama with factors for embeddings, attention, layers and logits."""

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
from penstock.models.factors import read_factor
from penstock.models.limits import MAX_FACTOR
from penstock.models.llama import NAMES as NAMES
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, EmbeddingScale, ModelSpec

ARCHITECTURE = "GraniteForCausalLM"
MODEL_TYPE = "granite"
KNOWN_AS = "Granite 3.0 to 3.3, dense"

_DEFAULTS: Final = {"rms_norm_eps": 1e-6, "max_position_embeddings": 2048}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    return read_granite(config, ARCHITECTURE, dtype)


def read_granite(
    config: ConfigReader, architecture: str, dtype: DType, scale: float | None = None
) -> ModelSpec:
    """A model with Granite's factors. ``scale`` is that of scores where nothing is said or null, if
    it may be."""
    config = config.adapted({}, _DEFAULTS)
    bias = config.boolean("attention_bias", False)
    model = read_decoder(
        config,
        architecture,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, None),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.boolean("mlp_bias", False),
    )
    name = "attention_multiplier"
    if scale is None:
        scale = read_factor(config, name)
    else:
        scale = config.optional_number(name, high=MAX_FACTOR) or scale
    model = with_attention(model, [replace(each.attention, scale=scale) for each in model.layers])
    return with_factors(config, model)


def with_factors(config: ConfigReader, model: ModelSpec) -> ModelSpec:
    """The model with Granite's factors of embeddings, of logits, and of what layers add."""
    residual = read_factor(config, "residual_multiplier")
    return replace(
        model,
        layers=tuple(replace(layer, residual_scale=residual) for layer in model.layers),
        embedding_scale=EmbeddingScale(read_factor(config, "embedding_multiplier")),
        logits_scale=1.0 / read_factor(config, "logits_scaling"),
    )
