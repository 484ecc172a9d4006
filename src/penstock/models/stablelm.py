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
)
from penstock.models.llama import NAMES as NAMES
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "StableLmForCausalLM"
MODEL_TYPE = "stablelm"

_DEFAULTS: Final = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "layer_norm_eps": 1e-5,
}
_ROPE: Final = RopeFields(default_partial=0.25)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    config.only("qk_layernorm", False, "must be false: norms of single heads are not supported")
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
    if not config.boolean("use_parallel_residual", False):
        return model
    layers = tuple(replace(layer, mlp_norm=None, parallel=True) for layer in model.layers)
    return replace(model, layers=layers)
