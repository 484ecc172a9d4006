"""SmolLM3: Llama whose every fourth layer does not rotate queries and keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    FULL,
    SLIDING,
    default_head_dim,
    read_decoder,
    read_kv_heads,
    read_layer_kinds,
    read_rotating,
    windows_of,
    with_attention,
)
from penstock.models.llama import NAMES as NAMES
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "SmolLM3ForCausalLM"
MODEL_TYPE = "smollm3"
KNOWN_AS = "SmolLM3 3B"
IDLE: Final = frozenset({"pretraining_tp", "max_window_layers"})
"""What other families have and SmolLM3 was saved with; transformers does not read it."""

_DEFAULTS: Final = {
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
_ROPE: Final = RopeFields(default_theta=2_000_000.0)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    rotates = read_rotating(config)
    sliding = config.boolean("use_sliding_window", False)
    window = config.optional_integer("sliding_window")
    local = SLIDING if sliding and window is not None else FULL
    kinds = read_layer_kinds(config, [FULL if each else local for each in rotates])
    if SLIDING in kinds and local is FULL:
        raise config.error(
            "layer_types", f"has {SLIDING!r}, but use_sliding_window or sliding_window does not"
        )
    bias = config.boolean("attention_bias", False)
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=windows_of(kinds, window),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.boolean("mlp_bias", False),
        rope_fields=_ROPE,
    )
    pairs = zip(model.layers, rotates, strict=True)
    turned = [each.attention if on else replace(each.attention, rope=None) for each, on in pairs]
    return with_attention(model, turned)
