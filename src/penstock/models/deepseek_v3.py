"""DeepSeek-V3 and R1, and Kimi K2: attention over latents, and experts behind the first layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import read_mlp, read_num_layers
from penstock.models.latent import EXPERTS, TRAINING, read_latent_decoder
from penstock.models.limits import MAX_LAYERS
from penstock.models.llama import NAMES
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "DeepseekV3ForCausalLM"
MODEL_TYPE = "deepseek_v3"
OTHER_MODEL_TYPES: Final = frozenset({"kimi_k2"})


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    layers = read_num_layers(config)
    dense = config.integer("first_k_dense_replace", 3, low=0, high=MAX_LAYERS)
    mlp = read_mlp(config)
    for name in (*TRAINING, *EXPERTS):
        config.raw(name)
    if dense < layers:
        raise config.error("first_k_dense_replace", f"must be at least {layers}")
    return read_latent_decoder(
        config,
        ARCHITECTURE,
        dtype,
        [mlp] * layers,
        replace(NAMES, idle=rf"{NAMES.idle}|{_drafting(config, layers)}"),
        interleaved=config.boolean("rope_interleave", True),
    )


def _drafting(config: ConfigReader, layers: int) -> str:
    """Regular expression of the tensors of layers that draft, which lie behind the others."""
    drafting = config.integer("num_nextn_predict_layers", 1, low=0, high=MAX_LAYERS)
    numbers = "|".join(str(layers + i) for i in range(drafting))
    return rf"model\.layers\.({numbers or '(?!)'})\..*"
