"""LFM2 with experts: LFM2 whose MLPs are mixtures, but for those of the first layers."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import read_num_layers
from penstock.models.lfm2 import NAMES as LFM2_NAMES
from penstock.models.lfm2_layers import DEFAULTS, FIELDS, read_hybrid
from penstock.models.lfm2_layers import IDLE as IDLE
from penstock.models.limits import MAX_FACTOR, MAX_INTERMEDIATE
from penstock.models.mixtures import (
    CHOICE_BIAS,
    ROUTER,
    TRAINING,
    one_by_one,
    read_expert_size,
    read_num_experts,
    read_top_k,
    together,
    with_experts,
)
from penstock.models.names import Name, NameMap, either, plain
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ExpertsSpec, MlpSpec, ModelSpec, Routing

ARCHITECTURE = "Lfm2MoeForCausalLM"
MODEL_TYPE = "lfm2_moe"
KNOWN_AS = "LFM2 8B-A1B, and LFM2.5"
_AT: Final = "model.layers.*.feed_forward"
NAMES: Final = NameMap(
    dict(LFM2_NAMES.names)
    | plain({ROUTER: f"{_AT}.gate"})
    | {CHOICE_BIAS: Name(f"{_AT}.expert_bias", suffix="")}
    | either(one_by_one(f"{_AT}.experts", "w1", "w3", "w2"), together(f"{_AT}.experts")),
    LFM2_NAMES.idle,
)

_DEFAULTS: Final = {
    **DEFAULTS,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "num_dense_layers": 2,
    "routed_scaling_factor": 1.0,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted(FIELDS, _DEFAULTS, TRAINING)
    dense = MlpSpec(config.integer("intermediate_size", high=MAX_INTERMEDIATE))
    model = read_hybrid(config, ARCHITECTURE, dtype, dense, whole=False)
    number = read_num_experts(config)
    experts = ExpertsSpec(
        num_experts=number,
        top_k=read_top_k(config, number),
        intermediate_size=read_expert_size(config),
        routing=Routing(
            "sigmoid",
            normalize=config.boolean("norm_topk_prob", True),
            normalize_eps=1e-6,
            scale=config.number("routed_scaling_factor", high=MAX_FACTOR),
            choice_bias=config.boolean("use_expert_bias", True),
        ),
    )
    first = config.integer("num_dense_layers", low=0, high=read_num_layers(config))
    return with_experts(model, experts, lambda i: i >= first)
