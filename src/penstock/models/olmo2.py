"""OLMo 2: norms behind each part and none before it, and norms over all queries and all keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    FULL,
    default_head_dim,
    read_decoder,
    read_kv_heads,
    read_norm,
    read_positions,
    uniform_windows,
    with_attention,
)
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.names import NameMap, plain
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields, read_rope
from penstock.models.spec import DType, ModelSpec, QkNormSpec, RopeSpec

ARCHITECTURE = "Olmo2ForCausalLM"
MODEL_TYPE = "olmo2"
KNOWN_AS = "OLMo 2 1B, 7B, 13B and 32B"
NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | plain(
        {
            "layers.*.attn_post_norm": "model.layers.*.post_attention_layernorm",
            "layers.*.mlp_post_norm": "model.layers.*.post_feedforward_layernorm",
        }
    ),
    LLAMA_NAMES.idle,
)

DEFAULTS: Final = {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, DEFAULTS)
    config.only("clip_qkv", None, "must be null: OLMo 2 does not clip queries, keys and values")
    head_dim, positions = default_head_dim(config), read_positions(config)
    windows = uniform_windows(config, None)
    ropes = {FULL: read_rope(config, head_dim, positions, RopeFields())}
    return read_olmo(config, ARCHITECTURE, dtype, [FULL] * len(windows), windows, ropes)


def read_olmo(
    config: ConfigReader,
    architecture: str,
    dtype: DType,
    kinds: Sequence[str],
    windows: Sequence[int | None],
    ropes: dict[str, RopeSpec],
) -> ModelSpec:
    """OLMo 2 or 3, with a window for each layer and a rotation for each kind of layer."""
    bias = config.boolean("attention_bias", False)
    model = read_decoder(
        config,
        architecture,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=windows,
        qkv_bias=bias,
        output_bias=bias,
        rope=ropes[FULL],
    )
    qk_norm = QkNormSpec(read_norm(config).eps, over="projection")
    return norms_behind(
        with_attention(
            model,
            [
                replace(layer.attention, rope=ropes[kind], qk_norm=qk_norm)
                for layer, kind in zip(model.layers, kinds, strict=True)
            ],
        )
    )


def norms_behind(model: ModelSpec) -> ModelSpec:
    """The model with the norms before each part behind it."""
    layers = (
        replace(
            layer,
            attn_norm=None,
            mlp_norm=None,
            attn_post_norm=layer.attn_norm,
            mlp_post_norm=layer.mlp_norm,
        )
        for layer in model.layers
    )
    return replace(model, layers=tuple(layers))
