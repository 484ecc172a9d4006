"""StableLM 3B and 2: Llama with LayerNorms, heads that rotate in part, and a parallel form."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_decoder,
    read_kv_heads,
    read_norm,
    uniform_windows,
    with_attention,
)
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.names import NameMap, plain
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields
from penstock.models.spec import DType, ModelSpec, QkNormSpec

ARCHITECTURE = "StableLmForCausalLM"
MODEL_TYPE = "stablelm"
KNOWN_AS = "StableLM 3B, StableLM 2 1.6B and 12B"
NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | plain(
        {
            "layers.*.q_norm": "model.layers.*.self_attn.q_layernorm.norms.#",
            "layers.*.k_norm": "model.layers.*.self_attn.k_layernorm.norms.#",
        }
    ),
    LLAMA_NAMES.idle,
)
"""Llama's, with a tensor for the norm of each head."""

_DEFAULTS: Final = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "layer_norm_eps": 1e-5,
}
_ROPE: Final = RopeFields(default_partial=0.25)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    model = read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, None),
        qkv_bias=config.boolean("use_qkv_bias", False),
        rope_fields=_ROPE,
        norm=read_norm(config, "layer_norm_eps", "layer", bias=True),
    )
    if config.boolean("qk_layernorm", False):
        norm = QkNormSpec(read_norm(config, "layer_norm_eps").eps, kind="layer", each_head=True)
        normed = [replace(layer.attention, qk_norm=norm) for layer in model.layers]
        model = with_attention(model, normed)
    if not config.boolean("use_parallel_residual", False):
        return model
    layers = tuple(replace(layer, mlp_norm=None, parallel=True) for layer in model.layers)
    return replace(model, layers=layers)
