"""Nemotron 3 and 4, and Minitron: LayerNorms stored less 1, an MLP without a gate, and heads that
rotate in part."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_decoder,
    read_kv_heads,
    read_norm,
    uniform_windows,
)
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.names import Name, NameMap
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "NemotronForCausalLM"
MODEL_TYPE = "nemotron"
KNOWN_AS = "Nemotron-4, Minitron 4B and 8B"
NAMES: Final = NameMap(
    {
        pattern: Name(name.stored, shift=1.0 if pattern.endswith("norm") else 0.0)
        for pattern, name in LLAMA_NAMES.names.items()
    },
    LLAMA_NAMES.idle,
)
"""Llama's, with norms whose weights are stored less 1."""

_DEFAULTS: Final = {
    "hidden_act": "relu2",
    "max_position_embeddings": 4096,
    "norm_eps": 1e-5,
}
_ROPE: Final = RopeFields(default_partial=0.5)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    bias = config.boolean("attention_bias", False)
    return read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, None),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.boolean("mlp_bias", False),
        gated=False,
        rope_fields=_ROPE,
        norm=read_norm(config, "norm_eps", "layer", bias=True),
    )
