"""Further architectures of GGUF files with mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.models.blocks import FULL
from penstock.models.gguf.architecture import Architecture, Fields
from penstock.models.gguf.keys import Keys
from penstock.models.gguf.parts import (
    DEEPSEEK_EXPERTS,
    EXPERTS,
    PARTIAL,
    SIGMOID,
    norm_behind_attention,
    read_expert_scale,
    read_gating,
)

_CHUNK: Final = 8192
"""The tokens of a chunk, and those after which queries grow, of all Llama 4."""
_MAVERICK: Final = 128
"""The experts of the model whose queries and keys are not normed."""


def _glm4(keys: Keys, fields: Fields) -> None:
    read_gating(keys, SIGMOID, SIGMOID)
    read_expert_scale(keys, fields)


def _minimax(keys: Keys, fields: Fields) -> None:
    read_gating(keys, SIGMOID, SIGMOID)
    size = keys.integer("attention.key_length")
    fields["rotary_dim"] = keys.integer("rope.dimension_count", size)


def _llama4(keys: Keys, fields: Fields) -> None:
    """Files say neither how long a chunk is nor how queries grow: all models have the same."""
    layers = keys.layers
    fields |= {"attention_chunk_size": _CHUNK, "floor_scale": _CHUNK}
    fields["use_qk_norm"] = keys.integer("expert_count") != _MAVERICK
    if keys.value("attention.sliding_window") == 0:  # attention to all tokens, which all rotate
        fields |= {"layer_types": [FULL] * layers, "no_rope_layers": [1] * layers}


MIXTURES: Final[Mapping[str, Architecture]] = {
    "glm4moe": Architecture(
        "Glm4MoeForCausalLM",
        fields=DEEPSEEK_EXPERTS,
        otherwise={"n_group": 1, "topk_group": 1, "norm_topk_prob": False},
        present={
            "attention_bias": "blk.0.attn_q.bias",
            "use_qk_norm": "blk.0.attn_q_norm.weight",
        },
        partial=PARTIAL,
        adjust=_glm4,
        names=norm_behind_attention,
    ),
    "llama4": Architecture(
        "Llama4ForCausalLM",
        fields={
            "num_local_experts": "expert_count",
            "num_experts_per_tok": "expert_used_count",
            "intermediate_size": "expert_feed_forward_length",
            "intermediate_size_mlp": "feed_forward_length",
            "interleave_moe_layer_step": "interleave_moe_layer_step",
        },
        adjust=_llama4,
    ),
    "minimax-m2": Architecture(
        "MiniMaxM2ForCausalLM",
        fields=EXPERTS | {"intermediate_size": "expert_feed_forward_length"},
        partial=PARTIAL,
        adjust=_minimax,
        idle_keys=frozenset({"feed_forward_length"}),
    ),
}
"""Architectures with experts, by ``general.architecture``."""
