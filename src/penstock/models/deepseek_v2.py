"""DeepSeek-V2 and V2-Lite: attention over latents, and experts behind the first layers."""

from __future__ import annotations

from penstock.models.blocks import read_mlp, read_num_layers
from penstock.models.latent import EXPERTS, TRAINING, read_latent_decoder
from penstock.models.limits import MAX_LAYERS
from penstock.models.llama import NAMES
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "DeepseekV2ForCausalLM"
MODEL_TYPE = "deepseek_v2"


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    layers = read_num_layers(config)
    dense = config.integer("first_k_dense_replace", 0, low=0, high=MAX_LAYERS)
    mlp = read_mlp(config, bias=config.boolean("mlp_bias", False))
    for name in (*TRAINING, *EXPERTS):
        config.raw(name)
    if dense < layers:
        raise config.error("first_k_dense_replace", f"must be at least {layers}")
    return read_latent_decoder(config, ARCHITECTURE, dtype, [mlp] * layers, NAMES)
