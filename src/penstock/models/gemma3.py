"""Gemma 3, the language model: norms before and behind each part, and windows on most layers."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    FULL,
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
from penstock.models.limits import MAX_FACTOR, MAX_HEAD_DIM, MAX_THETA
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields, read_rope, read_ropes
from penstock.models.rope_spec import RopeSpec
from penstock.models.spec import DType, EmbeddingScale, LayerSpec, ModelSpec, QkNormSpec

ARCHITECTURE = "Gemma3ForCausalLM"
MODEL_TYPE = "gemma3_text"
KNOWN_AS = "Gemma 3 270M and 1B, and the language model of 4B to 27B"
TEXT_PARTS: Final = {
    MODEL_TYPE: {
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
    }
}
NAMES: Final = SANDWICH_NAMES

_FULL_ROPE: Final = RopeFields(default_theta=1_000_000.0)
_LOCAL_ROPE: Final = RopeFields(theta="rope_local_base_freq")


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config.only(
        "use_bidirectional_attention", False, "must be false: only causal models are served"
    )
    config.only(
        "attn_logit_softcapping",
        None,
        "must be null: transformers does not compute it for Gemma 3, so what is meant is not known",
    )
    hidden_size = config.integer("hidden_size")
    head_dim = config.integer("head_dim", high=MAX_HEAD_DIM)
    bias, norm = config.boolean("attention_bias", False), read_norm(config)
    kinds = _layer_kinds(config)
    ropes = _ropes(config, head_dim, read_positions(config))
    window = config.integer("sliding_window")
    attention = replace(
        read_attention(config, head_dim, config.integer("num_key_value_heads")),
        scale=config.number("query_pre_attn_scalar", high=MAX_FACTOR) ** -0.5,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QkNormSpec(norm.eps),
    )
    mlp = read_mlp(config, activation="hidden_activation", default="gelu_pytorch_tanh")
    model = read_model(
        config,
        ARCHITECTURE,
        dtype,
        layers=[
            LayerSpec(
                replace(attention, rope=ropes[kind], window=window if kind == SLIDING else None),
                mlp,
                attn_norm=norm,
                mlp_norm=norm,
                attn_post_norm=norm,
                mlp_post_norm=norm,
            )
            for kind in kinds
        ],
        final_norm=norm,
        max_positions=read_positions(config),
        tie_embeddings=True,
    )
    cap = "final_logit_softcapping"
    config.raw(cap)
    return replace(
        model,
        embedding_scale=EmbeddingScale(math.sqrt(hidden_size), rounded=True),
        logits_softcap=config.number(cap, high=MAX_FACTOR) if config.has(cap) else None,
    )


def _layer_kinds(config: ConfigReader) -> tuple[str, ...]:
    """Which layers have a window: by ``layer_types``, else all but each ``pattern``-th.

    ``_sliding_window_pattern`` counts for nothing, as in transformers, which writes it (6, where it
    was not told otherwise) beside any ``layer_types`` and never reads it. A plain pattern that
    contradicts ``layer_types`` is refused: transformers follows the list, but nobody knows which of
    the two was meant.
    """
    name = "sliding_window_pattern"
    by_pattern = every(config.optional_integer(name) or 6, read_num_layers(config))
    kinds = read_layer_kinds(config, by_pattern)
    if config.has(name) and kinds != by_pattern:
        raise config.error(name, "contradicts layer_types; remove the one that is wrong")
    return kinds


def _ropes(config: ConfigReader, head_dim: int, positions: int) -> dict[str, RopeSpec]:
    """The rotation of full layers, and that of layers with a window, which is never scaled in v4.

    v5 writes an object of parameters for each kind of layer, v4 one base for each.
    """
    ropes = read_ropes(config, head_dim, positions, {FULL: _FULL_ROPE, SLIDING: _LOCAL_ROPE})
    if ropes is not None:
        return ropes
    local = config.number(_LOCAL_ROPE.theta, 10_000.0, above=1.0, high=MAX_THETA)
    return {
        FULL: read_rope(config, head_dim, positions, _FULL_ROPE),
        SLIDING: RopeSpec(theta=local, dim=head_dim),
    }
