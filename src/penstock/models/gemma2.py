"""Gemma 2: soft caps, norms before and behind each part, and windows on every other layer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    SLIDING,
    every,
    read_attention,
    read_layer_kinds,
    read_mlp,
    read_model,
    read_norm,
    read_num_layers,
    read_positions,
)
from penstock.models.gemma_names import SANDWICH_NAMES
from penstock.models.limits import MAX_FACTOR, MAX_HEAD_DIM
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import extended_positions, read_rope
from penstock.models.spec import DType, EmbeddingScale, LayerSpec, ModelSpec

ARCHITECTURE = "Gemma2ForCausalLM"
MODEL_TYPE = "gemma2"
KNOWN_AS = "Gemma 2 2B, 9B and 27B"
NAMES: Final = SANDWICH_NAMES

_DEFAULT: Final = "gelu_pytorch_tanh"


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config.only(
        "use_bidirectional_attention", False, "must be false: only causal models are served"
    )
    window = config.integer("sliding_window", 4096)
    config.only("sliding_window_size", window, f"contradicts sliding_window {window}")
    act = config.text("hidden_activation", _DEFAULT)
    if config.raw("hidden_act") not in (None, act, "gelu"):  # nobody reads it
        raise config.error("hidden_act", f"contradicts hidden_activation {act!r}; remove it")
    head_dim = config.integer("head_dim", 256, high=MAX_HEAD_DIM)
    positions, norm = read_positions(config), read_norm(config)
    rope = read_rope(config, head_dim, positions)
    bias = config.boolean("attention_bias", False)
    attention = replace(
        read_attention(config, head_dim, config.integer("num_key_value_heads")),
        rope=rope,
        scale=config.number("query_pre_attn_scalar", 256, high=MAX_FACTOR) ** -0.5,
        qkv_bias=bias,
        output_bias=bias,
        softcap=_cap(config, "attn_logit_softcapping", 50.0),
    )
    mlp = read_mlp(config, activation="hidden_activation", default=_DEFAULT)
    model = read_model(
        config,
        ARCHITECTURE,
        dtype,
        layers=[
            LayerSpec(
                replace(attention, window=window if kind == SLIDING else None),
                mlp,
                attn_norm=norm,
                mlp_norm=norm,
                attn_post_norm=norm,
                mlp_post_norm=norm,
            )
            for kind in read_layer_kinds(config, every(2, read_num_layers(config)))
        ],
        final_norm=norm,
        max_positions=extended_positions(rope, positions),
        tie_embeddings=True,
    )
    return replace(
        model,
        embedding_scale=EmbeddingScale(math.sqrt(model.hidden_size), rounded=True),
        logits_softcap=_cap(config, "final_logit_softcapping", 30.0),
    )


def _cap(config: ConfigReader, name: str, default: float) -> float | None:
    """A soft cap: ``default`` where the field is absent, none where it is null."""
    if config.contains(name) and config.raw(name) is None:
        return None
    return config.number(name, default, high=MAX_FACTOR)
