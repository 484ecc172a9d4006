"""DeepSeek-V2 and V2-Lite: attention over latents, and experts behind the first layers."""

from __future__ import annotations

from typing import Final

from penstock.models.deepseek import (
    DEFAULTS,
    FIELDS,
    TRAINING,
    read_latent_decoder,
    read_mlps,
)
from penstock.models.limits import MAX_FACTOR
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec, Routing

ARCHITECTURE = "DeepseekV2ForCausalLM"
MODEL_TYPE = "deepseek_v2"
KNOWN_AS = "DeepSeek-V2 and V2-Lite, DeepSeek-Coder-V2"
IDLE: Final = TRAINING

_DEFAULTS: Final = {
    **DEFAULTS,
    "first_k_dense_replace": 0,
    "num_experts": 64,
    "moe_intermediate_size": 1407,
    "n_shared_experts": 2,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted(FIELDS, _DEFAULTS)
    mlps = read_mlps(config, _routing, config.boolean("mlp_bias", False))
    return read_latent_decoder(config, ARCHITECTURE, dtype, mlps)


def _routing(config: ConfigReader, num_experts: int, top_k: int) -> Routing:
    config.only("scoring_func", "softmax", "must be softmax, as transformers computes it")
    config.only(
        "norm_topk_prob",
        False,
        "must be false: transformers does not normalize shares here, and what the checkpoint was "
        "made for is not known",
    )
    method, groups, chosen = config.text("topk_method", "greedy"), 1, 1
    if method == "group_limited_greedy":
        groups = config.integer("n_group", high=num_experts)
        chosen = config.integer("topk_group", high=groups)
    elif method != "greedy":
        raise config.error(
            "topk_method", "is not supported; supported are greedy and group_limited_greedy"
        )
    config.raw("n_group"), config.raw("topk_group")  # without a meaning where all are one group
    return Routing(
        normalize=False,
        scale=config.number("routed_scaling_factor", 1.0, high=MAX_FACTOR),
        groups=groups,
        groups_chosen=chosen,
    )
