"""DeepSeek-V3 and R1, and Kimi K2: attention over latents, and experts behind the first layers."""

from __future__ import annotations

from typing import Final

from penstock.models.deepseek import (
    TRAINING,
    ExpertDefaults,
    read_groups,
    read_latent_decoder,
    read_mlps,
)
from penstock.models.limits import MAX_FACTOR, MAX_LAYERS
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec, Routing

ARCHITECTURE = "DeepseekV3ForCausalLM"
MODEL_TYPE = "deepseek_v3"
KNOWN_AS = "DeepSeek-V3, V3.1 and R1, Kimi K2 and Moonlight, in bfloat16"
OTHER_MODEL_TYPES: Final = frozenset({"kimi_k2"})
"""What Kimi K2 calls itself."""


IDLE: Final = TRAINING

_DEFAULTS: Final = ExpertDefaults(3, experts=256, intermediate_size=2048, shared=1, top_k=8)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    mlps = read_mlps(config, _DEFAULTS, _routing)
    return read_latent_decoder(
        config,
        ARCHITECTURE,
        dtype,
        mlps,
        interleaved=config.boolean("rope_interleave", True),
        idle=_drafting(config, len(mlps)),
    )


def _routing(config: ConfigReader) -> Routing:
    config.only("scoring_func", "sigmoid", "must be sigmoid, as transformers computes it")
    config.only("topk_method", "noaux_tc", "must be noaux_tc, as transformers computes it")
    groups, chosen = read_groups(config, 8, 4)
    return Routing(
        scores="sigmoid",
        normalize=config.boolean("norm_topk_prob", True),
        normalize_eps=1e-20,
        scale=config.number("routed_scaling_factor", 2.5, high=MAX_FACTOR),
        groups=groups,
        groups_chosen=chosen,
        group_score="top2",
        choice_bias=True,
    )


def _drafting(config: ConfigReader, layers: int) -> str:
    """Regular expression of the tensors of layers that draft, which lie behind the others."""
    drafting = config.integer("num_nextn_predict_layers", 1, low=0, high=MAX_LAYERS)
    numbers = "|".join(str(layers + i) for i in range(drafting))
    return rf"model\.layers\.({numbers or '(?!)'})\..*"
