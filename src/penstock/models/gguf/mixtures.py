"""Decoders with mixtures of experts in GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.models.blocks import FULL
from penstock.models.gguf.architecture import Architecture, Fields, without
from penstock.models.gguf.dense import GRANITE, LLAMA, SEEN
from penstock.models.gguf.keys import Keys
from penstock.models.gguf.parts import (
    DEEPSEEK_EXPERTS,
    EXPERTS,
    NO_GROUP_LIMIT,
    PARTIAL,
    SIGMOID,
    norm_behind_attention,
    read_expert_scale,
    read_gating,
    read_windows,
)
from penstock.models.mixtures import CHOICE_BIAS
from penstock.models.name_forms import OneRow
from penstock.models.names import Name, either
from penstock.models.spec import ModelSpec

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


def _gpt_oss(keys: Keys, fields: Fields) -> None:
    read_windows(keys, fields, 2)
    scaling = fields.get("rope_scaling")
    if isinstance(scaling, dict):  # files do not say so, and all models are so
        scaling["truncate"] = False


def _ernie_moe(keys: Keys, fields: Fields) -> None:
    fields["moe_layer_end_index"] = keys.integer("block_count") - 1


def _ernie_moe_names(spec: ModelSpec) -> Mapping[str, Name]:
    name = Name("blk.*.exp_probs_b", suffix=".bias")
    return either({CHOICE_BIAS: name}, {CHOICE_BIAS: replace(name, form=OneRow())})


_QWEN3_MOE: Final = Architecture(
    "Qwen3MoeForCausalLM",
    fields=EXPERTS | {"moe_intermediate_size": "expert_feed_forward_length"},
    fixed={"norm_topk_prob": True},
)

MIXTURES: Final[Mapping[str, Architecture]] = {
    "llama with experts": replace(
        LLAMA,
        family="MixtralForCausalLM",
        fields=EXPERTS,
        present={},
        idle_keys=frozenset({"expert_feed_forward_length"}),
    ),
    "dots1": Architecture(
        "Dots1ForCausalLM",
        fields=DEEPSEEK_EXPERTS,
        fixed={"sliding_window": None},
        otherwise=NO_GROUP_LIMIT,
        idle_keys=frozenset({"expert_gating_func"}),
    ),
    "ernie4_5-moe": Architecture(
        "Ernie4_5_MoeForCausalLM",
        fields={
            "moe_num_experts": "expert_count",
            "moe_k": "expert_used_count",
            "moe_num_shared_experts": "expert_shared_count",
            "moe_intermediate_size": "expert_feed_forward_length",
            "moe_layer_start_index": "leading_dense_block_count",
            "moe_layer_interval": "interleave_moe_layer_step",
        },
        without=without("head_dim"),
        adjust=_ernie_moe,
        names=_ernie_moe_names,
        idle_keys=frozenset({"expert_shared_feed_forward_length"}),
    ),
    "glm4moe": Architecture(
        "Glm4MoeForCausalLM",
        fields=DEEPSEEK_EXPERTS,
        otherwise=NO_GROUP_LIMIT,
        present={
            "attention_bias": "blk.0.attn_q.bias",
            "use_qk_norm": "blk.0.attn_q_norm.weight",
        },
        partial=PARTIAL,
        adjust=_glm4,
        names=norm_behind_attention,
    ),
    "gpt-oss": Architecture(
        "GptOssForCausalLM",
        fields=EXPERTS | {"intermediate_size": "expert_feed_forward_length"},
        idle_keys=frozenset({"feed_forward_length"}),
        adjust=_gpt_oss,
        names=norm_behind_attention,
    ),
    "granitemoe": replace(
        GRANITE, family="GraniteMoeForCausalLM", fields={**GRANITE.fields, **EXPERTS}
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
    "olmoe": Architecture("OlmoeForCausalLM", fields=EXPERTS, fixed={"norm_topk_prob": False}),
    "qwen2moe": Architecture(
        "Qwen2MoeForCausalLM",
        fields=EXPERTS
        | {
            "moe_intermediate_size": "expert_feed_forward_length",
            "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        },
        fixed={"norm_topk_prob": False},
    ),
    "qwen3moe": _QWEN3_MOE,
    "qwen3vlmoe": replace(_QWEN3_MOE, idle_keys=SEEN),
}
"""These architectures, by ``general.architecture``; ``with experts`` stands for files that have
some though others of the same name do not."""
