"""Qwen3.5 with experts: Qwen3.5 whose MLPs are mixtures of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.mixtures import TRAINING
from penstock.models.qwen3_5 import MTP, names_of
from penstock.models.qwen_hybrid import DEFAULTS, read_experts, read_hybrid
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "Qwen3_5MoeForCausalLM"
MODEL_TYPE = "qwen3_5_moe_text"
KNOWN_AS = "the language models of Qwen3.5-35B-A3B, 122B-A10B and 397B-A17B"
IDLE: Final = MTP | {"intermediate_size"}

_DEFAULTS: Final = {
    **DEFAULTS,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS, TRAINING)
    if config.integers("mlp_only_layers"):
        raise config.error("mlp_only_layers", "must be empty: every layer has experts")
    config.only("norm_topk_prob", True, "must be true: shares of experts are normalized")
    experts = read_experts(config)
    spec = read_hybrid(config, ARCHITECTURE, dtype, lambda _: experts)
    return replace(spec, names=names_of(spec, experts=True))
