"""Fields, names and readers that several architectures of GGUF files share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.models.blocks import FULL, SLIDING, every
from penstock.models.gguf.architecture import Fields
from penstock.models.gguf.keys import Keys
from penstock.models.gguf.names import one_more, paired
from penstock.models.names import Name, fused, plain
from penstock.models.spec import AttentionSpec, ModelSpec, attention_of

EXPERTS: Final = {"num_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
DEEPSEEK_EXPERTS: Final = {
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "first_k_dense_replace": "leading_dense_block_count",
    "n_shared_experts": "expert_shared_count",
    "routed_scaling_factor": "expert_weights_scale",
    "norm_topk_prob": "expert_weights_norm",
}
NO_GROUP_LIMIT: Final = {"n_group": 1, "topk_group": 1, "norm_topk_prob": False}
"""What those fields of DeepSeek's experts are that files may leave out."""
GRANITE_FACTORS: Final = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
LAYER_NORM: Final = "attention.layer_norm_epsilon"
RMS_NORM: Final = "attention.layer_norm_rms_epsilon"
PARTIAL: Final = "partial_rotary_factor"

SOFTMAX, SIGMOID = 1, 2
"""What ``expert_gating_func`` has for these."""


def first_attention(spec: ModelSpec) -> AttentionSpec | None:
    """The attention of the first layer that has any."""
    found = map(attention_of, spec.layers)
    return next((each for each in found if each is not None), None)


def paired_names(spec: ModelSpec) -> dict[str, Name]:
    """Llama's queries and keys."""
    attention = first_attention(spec)
    return {} if attention is None else paired(attention.num_heads, attention.num_kv_heads)


def one_more_names(spec: ModelSpec) -> Mapping[str, Name]:
    """Gemma's norms."""
    return one_more()


def gates_before_ups(spec: ModelSpec) -> Mapping[str, Name]:
    """Gates and ups in one tensor."""
    return fused("blk.*.ffn_up", "layers.*.gate", "layers.*.up")


def norm_behind_attention(spec: ModelSpec) -> Mapping[str, Name]:
    """The norm before the MLP, by the name of the one behind attention."""
    return plain({"layers.*.mlp_norm": "blk.*.post_attention_norm"})


def read_windows(keys: Keys, fields: Fields, pattern: int, window: int | None = None) -> None:
    """Which layers have windows: those that a list says, or all but each n-th."""
    said = keys.raw("attention.sliding_window_pattern")
    size = keys.value("attention.sliding_window")
    fields["sliding_window"] = size if size is not None else window
    layers = keys.layers
    if isinstance(said, list):
        if len(said) != layers:
            raise keys.error("attention.sliding_window_pattern", f"must have {layers} values")
        kinds = tuple(SLIDING if each else FULL for each in said)
    else:
        kinds = every(said if isinstance(said, int) and said else pattern, layers)
    fields["layer_types"] = list(kinds)


def read_either_norm(keys: Keys, fields: Fields, name: str) -> None:
    """The epsilon of norms, which converters have by either of two keys."""
    fields[name] = keys.number(RMS_NORM, keys.number(LAYER_NORM, 1e-5))


def read_gating(keys: Keys, known: int, absent: int) -> None:
    """Refuse experts whose scores are not those of ``known``, which files without a word have where
    it is ``absent``."""
    if keys.integer("expert_gating_func", absent) != known:
        name = {SOFTMAX: "softmax", SIGMOID: "sigmoid"}[known]
        raise keys.error("expert_gating_func", f"must be {known}, {name}; convert the model again")


def read_expert_scale(keys: Keys, fields: Fields) -> None:
    """The factor of experts' shares, of which 0 says that there is none."""
    fields["routed_scaling_factor"] = keys.number("expert_weights_scale", 0.0) or 1.0


def read_attending(keys: Keys, fields: Fields) -> list[bool]:
    """Which layers attend: those with KV heads, which are as many in each of them."""
    heads = keys.each_layer("attention.head_count_kv")
    several = {each for each in heads if each}
    if len(several) > 1:
        raise keys.error("attention.head_count_kv", "must be one number, or 0 for other layers")
    fields["num_key_value_heads"] = max(several, default=keys.integer("attention.head_count"))
    return [bool(each) for each in heads]
