"""MiniCPM3: DeepSeek's attention over latents, whose halves rotate, with factors for embeddings,
layers and logits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from penstock.models.blocks import read_mlp, read_num_layers
from penstock.models.deepseek import DEFAULTS, read_latent_decoder
from penstock.models.limits import MAX_FACTOR, MAX_HEADS, MAX_HIDDEN
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields
from penstock.models.spec import DType, EmbeddingScale, ModelSpec

ARCHITECTURE = "MiniCPM3ForCausalLM"
MODEL_TYPE = "minicpm3"
KNOWN_AS = "MiniCPM3 4B"

_DEFAULTS: Final = {
    **DEFAULTS,
    "q_lora_rank": 768,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "scale_emb": 12,
    "scale_depth": 1.4,
    "dim_model_base": 256,
}
_ROPE: Final = RopeFields(kinds=("default", "linear", "dynamic", "llama3", "yarn", "longrope"))


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    heads = config.integer("num_attention_heads", high=MAX_HEADS)
    hidden = config.integer("hidden_size", high=MAX_HIDDEN)
    if hidden % heads and not config.has("v_head_dim"):
        raise config.error("v_head_dim", f"is required where {heads} does not divide {hidden}")
    config = config.adapted({}, {**_DEFAULTS, "v_head_dim": hidden // heads})
    bias, layers = config.boolean("mlp_bias", False), read_num_layers(config)
    mlps = [read_mlp(config, bias=bias)] * layers
    model = read_latent_decoder(
        config, ARCHITECTURE, dtype, mlps, interleaved=False, rope_fields=_ROPE
    )

    def factor(name: str, none: float) -> float:
        """A factor's part of the configuration; ``none`` where that is null."""
        return config.number(name, none, high=MAX_FACTOR)

    residual = factor("scale_depth", math.sqrt(layers)) / math.sqrt(layers)
    return replace(
        model,
        layers=tuple(replace(layer, residual_scale=residual) for layer in model.layers),
        embedding_scale=EmbeddingScale(factor("scale_emb", 1.0), rounded=True),
        logits_scale=factor("dim_model_base", hidden) / hidden,
    )
