"""Youtu-LLM: DeepSeek V3's attention over latents, and no experts."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import read_mlp, read_num_layers
from penstock.models.deepseek import DEFAULTS, read_latent_decoder
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "YoutuForCausalLM"
MODEL_TYPE = "youtu"
KNOWN_AS = "Youtu-LLM 2B"
IDLE: Final = frozenset({"embedding_initializer_range"})

_DEFAULTS: Final = {
    **DEFAULTS,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    config.only("mlp_bias", False, "must be false: Youtu has no MLP biases")
    mlps = [read_mlp(config)] * read_num_layers(config)
    interleaved = config.boolean("rope_interleave", True)
    return read_latent_decoder(config, ARCHITECTURE, dtype, mlps, interleaved=interleaved)
