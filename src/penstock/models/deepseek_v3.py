"""DeepSeek-V3 and R1, and Kimi K2: attention over latents, and experts behind the first layers."""

from __future__ import annotations

from typing import Final

from penstock.models.deepseek import (
    DEFAULTS,
    FIELDS,
    TRAINING,
    drafting_layers,
    read_latent_decoder,
    read_mlps,
    read_sigmoid_routing,
)
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "DeepseekV3ForCausalLM"
MODEL_TYPE = "deepseek_v3"
KNOWN_AS = "DeepSeek-V3, V3.1 and R1, Kimi K2 and Moonlight, in bfloat16"
OTHER_MODEL_TYPES: Final = frozenset({"kimi_k2"})
"""What Kimi K2 calls itself."""
IDLE: Final = TRAINING

_DEFAULTS: Final = {
    **DEFAULTS,
    "first_k_dense_replace": 3,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted(FIELDS, _DEFAULTS)
    mlps = read_mlps(config, read_sigmoid_routing)
    return read_latent_decoder(
        config,
        ARCHITECTURE,
        dtype,
        mlps,
        interleaved=config.boolean("rope_interleave", True),
        idle=drafting_layers(config, len(mlps)),
    )
