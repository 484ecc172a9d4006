"""Qwen3-Next: gated delta nets with gated attention in every fourth layer, and experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import read_mlp
from penstock.models.mixtures import TRAINING
from penstock.models.names import NameMap, fused
from penstock.models.qwen_hybrid import DEFAULTS, NET, names, read_experts, read_hybrid
from penstock.models.reader import ConfigReader
from penstock.models.spec import (
    AttentionSpec,
    DType,
    ExpertsSpec,
    GatedDeltaSpec,
    MlpSpec,
    ModelSpec,
)

ARCHITECTURE = "Qwen3NextForCausalLM"
MODEL_TYPE = "qwen3_next"
KNOWN_AS = "Qwen3-Next-80B-A3B, Qwen3-Coder-Next"

_DEFAULTS: Final = {
    **DEFAULTS,
    "num_key_value_heads": 2,
    "intermediate_size": 5632,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 512,
    "num_experts_per_tok": 10,
}
_OF_EXPERTS: Final = (
    "moe_intermediate_size",
    "norm_topk_prob",
    "num_experts_per_tok",
    "shared_expert_intermediate_size",
)
"""What is passed over where there are no experts."""


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS, TRAINING)
    dense, step = config.integers("mlp_only_layers"), config.integer("decoder_sparse_step", 1)
    plain = read_mlp(config)
    experts: MlpSpec | ExpertsSpec = plain
    if config.integer("num_experts", low=0) > 0:
        experts = read_experts(config)
    for name in _OF_EXPERTS:
        config.raw(name)
    spec = read_hybrid(
        config,
        ARCHITECTURE,
        dtype,
        lambda i: plain if i in dense or (i + 1) % step else experts,
    )
    return replace(spec, names=_names(spec))


def _names(spec: ModelSpec) -> NameMap:
    """Rows of what goes into delta nets lie key head by key head; without such, anywhere."""
    mixers = [layer.mixer for layer in spec.layers]
    heads = next((each.num_heads for each in mixers if isinstance(each, AttentionSpec)), 1)
    keys = next((each.key_heads for each in mixers if isinstance(each, GatedDeltaSpec)), 1)
    rows = [f"layers.*.delta.{name}" for name in ("q", "k", "v", "z", "b", "a")]
    return names(
        heads,
        experts=True,
        projections=fused(f"{NET}.in_proj_qkvz", *rows[:4], shares=keys)
        | fused(f"{NET}.in_proj_ba", *rows[4:], shares=keys),
    )
