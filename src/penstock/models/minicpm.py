"""MiniCPM 1 and 2, which exist as code of their own: Llama with a factor for embeddings, layers
and logits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_decoder,
    read_kv_heads,
    read_num_layers,
)
from penstock.models.limits import MAX_FACTOR
from penstock.models.llama import NAMES as NAMES
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields
from penstock.models.spec import DType, EmbeddingScale, ModelSpec

ARCHITECTURE = "MiniCPMForCausalLM"
MODEL_TYPE = "minicpm"
KNOWN_AS = "MiniCPM 1B and 2B"

_DEFAULTS: Final = {
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
# MiniCPM4's longrope is of code that differs.
_ROPE: Final = RopeFields(kinds=("default", "linear", "dynamic"))


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)

    def factor(name: str) -> float:
        return config.number(name, 1.0, high=MAX_FACTOR)

    bias = config.boolean("attention_bias", False)
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=(None,) * read_num_layers(config),
        qkv_bias=bias,
        output_bias=bias,
        rope_fields=_ROPE,
    )
    residual = factor("scale_depth") / math.sqrt(len(model.layers))
    return replace(
        model,
        layers=tuple(replace(layer, residual_scale=residual) for layer in model.layers),
        embedding_scale=EmbeddingScale(factor("scale_emb")),
        logits_scale=factor("dim_model_base") / model.hidden_size,
    )
