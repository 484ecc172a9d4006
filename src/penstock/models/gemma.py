"""Gemma: Llama with norms whose weights are stored less 1, and scaled embeddings."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    read_activation,
    read_attention,
    read_mlp,
    read_model,
    read_norm,
    read_num_layers,
    read_positions,
)
from penstock.models.limits import MAX_HEAD_DIM
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.name_forms import Less
from penstock.models.names import NameMap
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import extended_positions, read_rope
from penstock.models.spec import Activation, DType, EmbeddingScale, LayerSpec, ModelSpec

ARCHITECTURE = "GemmaForCausalLM"
MODEL_TYPE = "gemma"
KNOWN_AS = "Gemma 2B and 7B, CodeGemma"
NAMES: Final = NameMap(
    {
        pattern: replace(name, form=Less(1.0)) if pattern.endswith("norm") else name
        for pattern, name in LLAMA_NAMES.names.items()
    },
    LLAMA_NAMES.idle,
)
"""Llama's, with norms whose weights are stored less 1."""

CAUSAL: Final = "must be false: only causal models are served"


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config.only("use_bidirectional_attention", False, CAUSAL)
    head_dim = config.integer("head_dim", 256, high=MAX_HEAD_DIM)
    positions, norm = read_positions(config), read_norm(config)
    rope = read_rope(config, head_dim, positions)
    bias = config.boolean("attention_bias", False)
    attention = replace(
        read_attention(config, head_dim, config.integer("num_key_value_heads")),
        rope=rope,
        qkv_bias=bias,
        output_bias=bias,
    )
    mlp = replace(read_mlp(config, default="gelu_pytorch_tanh"), activation=_activation(config))
    model = read_model(
        config,
        ARCHITECTURE,
        dtype,
        layers=[LayerSpec(attention, mlp, norm, norm)] * read_num_layers(config),
        final_norm=norm,
        max_positions=extended_positions(rope, positions),
        tie_embeddings=True,
    )
    return replace(
        model, embedding_scale=EmbeddingScale(math.sqrt(model.hidden_size), rounded=True)
    )


def _activation(config: ConfigReader) -> Activation:
    """``hidden_act``, which says ``gelu`` for its approximation in the first releases.

    ``hidden_activation`` was added beside it then, and is read no more.
    """
    read = read_activation(config, default="gelu_pytorch_tanh")
    meant: Activation = "gelu_tanh" if read == "gelu" else read
    config.raw("hidden_activation")
    if config.has("hidden_activation") and read_activation(config, "hidden_activation") != meant:
        raise config.error("hidden_activation", "contradicts hidden_act; remove the wrong one")
    return meant
