"""Granite 3 with experts: Granite whose MLPs are mixtures, with shares of the chosen alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import read_activation
from penstock.models.granite import read as read_granite
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.mixtures import (
    BLOCK,
    DOWN,
    GATE,
    ROUTER,
    TRAINING,
    UP,
    read_expert_size,
    read_num_experts,
    read_top_k,
    together,
    with_experts,
)
from penstock.models.names import NameMap, either, plain, stacked
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ExpertsSpec, ModelSpec, Routing

ARCHITECTURE = "GraniteMoeForCausalLM"
MODEL_TYPE = "granitemoe"
KNOWN_AS = "Granite 3 1B-A400M and 3B-A800M"
NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | either(
        plain({ROUTER: f"{BLOCK}.router.layer"})
        | stacked(f"{BLOCK}.input_linear", GATE, UP, suffix=".weight")
        | stacked(f"{BLOCK}.output_linear", DOWN, suffix=".weight"),
        plain({ROUTER: f"{BLOCK}.router"}) | together(f"{BLOCK}.experts"),
    ),
    LLAMA_NAMES.idle,
)

FIELDS: Final = {"num_experts": "num_local_experts"}
DEFAULTS: Final = {"num_experts": 8, "num_experts_per_tok": 2}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    model = replace(read_granite(config, dtype), architecture=ARCHITECTURE)
    config = config.adapted(FIELDS, DEFAULTS, TRAINING)
    config.only("mlp_bias", False, "must be false: Granite's experts have no biases")
    return with_experts(model, read_experts(config))


def read_experts(config: ConfigReader) -> ExpertsSpec:
    """Experts whose shares are of the chosen alone."""
    number = read_num_experts(config)
    return ExpertsSpec(
        num_experts=number,
        top_k=read_top_k(config, number),
        intermediate_size=read_expert_size(config, "intermediate_size"),
        activation=read_activation(config),
        routing=Routing("softmax_chosen", normalize=False),
    )
