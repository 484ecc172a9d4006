"""All architectures of GGUF files that are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from penstock.gguf.writing import NewValue
from penstock.models.blocks import FULL, SLIDING, every
from penstock.models.gguf.architecture import Architecture, Fields, WriteRules, without
from penstock.models.gguf.keys import Keys
from penstock.models.gguf.names import QKV, one_more, paired
from penstock.models.mixtures import CHOICE_BIAS
from penstock.models.name_forms import OneRow
from penstock.models.names import Name, either, fused, plain
from penstock.models.spec import ModelSpec

_EXPERTS: Final = {"num_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
_GEMMA_27B: Final = {"gemma2": 46, "gemma3": 62}
"""The layers of the models whose scores are scaled by the hidden size of a head's share."""


def _paired(spec: ModelSpec) -> Mapping[str, Name]:
    attention = spec.layers[0].attention
    return paired(attention.num_heads, attention.num_kv_heads)


def _one_more(spec: ModelSpec) -> Mapping[str, Name]:
    return one_more()


def _windows(keys: Keys, fields: Fields, pattern: int, window: int | None = None) -> None:
    """Which layers have windows: those that a list says, or all but each n-th."""
    said = keys.raw("attention.sliding_window_pattern")
    size = keys.value("attention.sliding_window")
    fields["sliding_window"] = size if size is not None else window
    layers = keys.integer("block_count")
    if isinstance(said, list):
        if len(said) != layers:
            raise keys.error("attention.sliding_window_pattern", f"must have {layers} values")
        kinds = tuple(SLIDING if each else FULL for each in said)
    else:
        kinds = every(said if isinstance(said, int) and said else pattern, layers)
    fields["layer_types"] = list(kinds)


def _gemma_scale(keys: Keys, fields: Fields) -> None:
    heads, head_dim = keys.integer("attention.head_count"), keys.integer("attention.key_length")
    if keys.integer("block_count") == _GEMMA_27B[keys.architecture]:
        head_dim = keys.integer("embedding_length") // heads
    fields["query_pre_attn_scalar"] = head_dim


def _gemma2(keys: Keys, fields: Fields) -> None:
    _gemma_scale(keys, fields)
    _windows(keys, fields, 2, 4096)
    for cap, usual in (("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)):
        fields[cap] = keys.number(cap, usual) or None


def _gemma3(keys: Keys, fields: Fields) -> None:
    _gemma_scale(keys, fields)
    if not keys.value("attention.sliding_window"):
        raise keys.error("attention.sliding_window", "is required; convert the model again")
    _windows(keys, fields, 6)
    fields["rope_local_base_freq"] = keys.number("rope.freq_base_swa", 10_000.0)
    fields["final_logit_softcapping"] = keys.number("final_logit_softcapping", 0.0) or None


def _phi3(keys: Keys, fields: Fields) -> None:
    # Converters write the window of models that were trained without one, too, so nobody reads it.
    keys.raw("attention.sliding_window")
    original = keys.raw("rope.scaling.original_context_length")
    if original is not None:
        fields["original_max_position_embeddings"] = original


def _gpt_oss(keys: Keys, fields: Fields) -> None:
    _windows(keys, fields, 2)
    scaling = fields.get("rope_scaling")
    if isinstance(scaling, dict):  # files do not say so, and all models are so
        scaling["truncate"] = False


def _exaone4(keys: Keys, fields: Fields) -> None:
    if keys.value("attention.sliding_window"):
        _windows(keys, fields, 4)
    else:
        fields["sliding_window"] = None


def _cohere2(keys: Keys, fields: Fields) -> None:
    _windows(keys, fields, 4)


def _ernie_moe(keys: Keys, fields: Fields) -> None:
    fields["moe_layer_end_index"] = keys.integer("block_count") - 1


def _ernie_moe_names(spec: ModelSpec) -> Mapping[str, Name]:
    name = Name("blk.*.exp_probs_b", suffix=".bias")
    return either({CHOICE_BIAS: name}, {CHOICE_BIAS: replace(name, form=OneRow())})


def _lfm2(keys: Keys, fields: Fields) -> None:
    heads = keys.raw("attention.head_count_kv")
    kinds = heads if isinstance(heads, list) else [heads] * keys.integer("block_count")
    several = {each for each in kinds if each}
    if len(several) != 1:
        raise keys.error("attention.head_count_kv", "must be one number, or 0 for convolutions")
    fields["num_key_value_heads"] = several.pop()
    fields["layer_types"] = [FULL if each else "conv" for each in kinds]


def _lfm2_names(spec: ModelSpec) -> Mapping[str, Name]:
    at = "blk.*.shortconv."
    parts = (f"layers.*.conv_{name}" for name in "bcx")
    return plain({"layers.*.conv": f"{at}conv", "layers.*.conv_out": f"{at}out_proj"}) | (
        fused(f"{at}in_proj", *parts)
        | either(plain({"final_norm": "token_embd_norm"}), plain({"final_norm": "output_norm"}))
    )


def _falcon(keys: Keys, fields: Fields) -> None:
    heads = keys.integer("attention.head_count")
    kv_heads = keys.integer("attention.head_count_kv", heads)
    fields["num_kv_heads"] = kv_heads
    fields["multi_query"] = kv_heads == 1 and not fields["new_decoder_architecture"]


def _falcon_names(spec: ModelSpec) -> Mapping[str, Name]:
    """Of two norms in parallel, the second is that of attention."""
    if spec.layers[0].mlp_norm is None:
        return {}
    at = "blk.*.attn_norm"
    return plain({"layers.*.attn_norm": f"{at}_2", "layers.*.mlp_norm": at})


def _gates_before_ups(spec: ModelSpec) -> Mapping[str, Name]:
    return fused("blk.*.ffn_up", "layers.*.gate", "layers.*.up")


def _norm_behind_attention(spec: ModelSpec) -> Mapping[str, Name]:
    return plain({"layers.*.mlp_norm": "blk.*.post_attention_norm"})


def _written_windows(
    spec: ModelSpec, pattern: int, more: Mapping[str, NewValue] | None = None
) -> Mapping[str, NewValue]:
    """The other direction of :func:`_windows`: a list only where layers are not the usual ones."""
    windows = [layer.attention.window for layer in spec.layers]
    sizes = {each for each in windows if isinstance(each, int)}
    values = {} if more is None else dict(more)
    if len(sizes) == 1:
        values["attention.sliding_window"] = sizes.pop()
    kinds = tuple(FULL if each is None else SLIDING for each in windows)
    if kinds != every(pattern, len(windows)):
        said = np.array([each == SLIDING for each in kinds])
        values["attention.sliding_window_pattern"] = said
    return values


def _gemma2_keys(spec: ModelSpec) -> Mapping[str, NewValue]:
    caps = {
        "attn_logit_softcapping": spec.layers[0].attention.softcap or 0.0,
        "final_logit_softcapping": spec.logits_softcap or 0.0,
    }
    return _written_windows(spec, 2, caps)


def _gemma3_keys(spec: ModelSpec) -> Mapping[str, NewValue]:
    more: dict[str, NewValue] = {}
    if spec.logits_softcap is not None:
        more["final_logit_softcapping"] = spec.logits_softcap
    for layer in spec.layers:
        rope = layer.attention.rope
        if layer.attention.window is not None and rope is not None and rope.theta != 10_000.0:
            more["rope.freq_base_swa"] = float(rope.theta)
    return _written_windows(spec, 6, more)


_PLAIN: Final = WriteRules()
_LLAMA: Final = Architecture(
    "LlamaForCausalLM",
    present={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"},
    names=_paired,
    writing=WriteRules(drops_windows=True),
)
_GRANITE: Final = Architecture(
    "GraniteForCausalLM",
    fields={
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    },
    names=_paired,
    writing=_PLAIN,
)
_DEEPSEEK_EXPERTS: Final = {
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
_LAYER_NORM: Final = "attention.layer_norm_epsilon"
_OLD: Final = without("rms_norm_eps", "head_dim", "num_key_value_heads")
_PARTIAL: Final = "partial_rotary_factor"

ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "llama": _LLAMA,
    "llama with experts": replace(
        _LLAMA,
        family="MixtralForCausalLM",
        fields=_EXPERTS,
        present={},
        idle_keys=frozenset({"expert_feed_forward_length"}),
    ),
    "arcee": Architecture("ArceeForCausalLM", names=_paired),
    "bloom": Architecture(
        "BloomForCausalLM",
        fields={"layer_norm_epsilon": _LAYER_NORM},
        without=_OLD | {"intermediate_size"},
        rotates=False,
        idle_keys=frozenset(
            {"feed_forward_length", "attention.head_count_kv", "attention.max_alibi_bias"}
        ),
    ),
    "cohere2": Architecture(
        "Cohere2ForCausalLM",
        fields={"layer_norm_eps": _LAYER_NORM, "logit_scale": "logit_scale"},
        without=without("rms_norm_eps"),
        adjust=_cohere2,
    ),
    "command-r": Architecture(
        "CohereForCausalLM",
        fields={"layer_norm_eps": _LAYER_NORM, "logit_scale": "logit_scale"},
        without=without("rms_norm_eps"),
        present={"use_qk_norm": "blk.0.attn_q_norm.weight"},
    ),
    "dots1": Architecture(
        "Dots1ForCausalLM",
        fields=_DEEPSEEK_EXPERTS,
        fixed={"sliding_window": None},
        otherwise={"n_group": 1, "topk_group": 1, "norm_topk_prob": False},
        idle_keys=frozenset({"expert_gating_func"}),
    ),
    "ernie4_5": Architecture("Ernie4_5ForCausalLM"),
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
    "exaone4": Architecture("Exaone4ForCausalLM", adjust=_exaone4),
    "falcon": Architecture(
        "FalconForCausalLM",
        fields={"layer_norm_epsilon": _LAYER_NORM},
        without=_OLD | {"intermediate_size"},
        fixed={"parallel_attn": True, "bias": False},
        present={"new_decoder_architecture": "blk.0.attn_norm_2.weight"},
        adjust=_falcon,
        names=_falcon_names,
        idle_keys=frozenset({"tensor_data_layout", "feed_forward_length"}),
    ),
    "gemma": Architecture("GemmaForCausalLM", names=_one_more, writing=_PLAIN),
    "gemma2": Architecture(
        "Gemma2ForCausalLM", adjust=_gemma2, names=_one_more, writing=WriteRules(_gemma2_keys)
    ),
    "gemma3": Architecture(
        "Gemma3ForCausalLM", adjust=_gemma3, names=_one_more, writing=WriteRules(_gemma3_keys)
    ),
    "glm4": Architecture(
        "Glm4ForCausalLM",
        present={"attention_bias": "blk.0.attn_q.bias"},
        partial=_PARTIAL,
        names=_gates_before_ups,
    ),
    "gpt-oss": Architecture(
        "GptOssForCausalLM",
        fields=_EXPERTS | {"intermediate_size": "expert_feed_forward_length"},
        idle_keys=frozenset({"feed_forward_length"}),
        adjust=_gpt_oss,
        names=_norm_behind_attention,
    ),
    "gpt2": Architecture(
        "GPT2LMHeadModel",
        fields={"layer_norm_epsilon": _LAYER_NORM, "n_inner": "feed_forward_length"},
        without=_OLD | {"intermediate_size"},
        rotates=False,
    ),
    "granite": _GRANITE,
    "granitemoe": replace(
        _GRANITE, family="GraniteMoeForCausalLM", fields={**_GRANITE.fields, **_EXPERTS}
    ),
    "hunyuan-dense": Architecture("HunYuanDenseV1ForCausalLM"),
    "lfm2": Architecture(
        "Lfm2ForCausalLM",
        fields={
            "norm_eps": "attention.layer_norm_rms_epsilon",
            "conv_L_cache": "shortconv.l_cache",
        },
        without=without("rms_norm_eps", "head_dim", "num_key_value_heads"),
        fixed={"block_auto_adjust_ff_dim": False},
        adjust=_lfm2,
        names=_lfm2_names,
    ),
    "nemotron": Architecture(
        "NemotronForCausalLM",
        fields={"norm_eps": _LAYER_NORM},
        without=without("rms_norm_eps"),
        partial=_PARTIAL,
        names=_one_more,
        idle_keys=frozenset({"attention.layer_norm_rms_epsilon"}),
    ),
    "olmo": Architecture(
        "OlmoForCausalLM",
        fields={"clip_qkv": "attention.clamp_kqv"},
        without=without("rms_norm_eps", "head_dim"),
        names=_paired,
        idle_keys=frozenset({_LAYER_NORM}),
    ),
    "olmo2": Architecture("Olmo2ForCausalLM", writing=_PLAIN),
    "olmoe": Architecture("OlmoeForCausalLM", fields=_EXPERTS, fixed={"norm_topk_prob": False}),
    "phi2": Architecture(
        "PhiForCausalLM",
        fields={"layer_norm_eps": _LAYER_NORM},
        without=without("rms_norm_eps"),
        partial=_PARTIAL,
    ),
    "phi3": Architecture(
        "Phi3ForCausalLM",
        partial=_PARTIAL,
        adjust=_phi3,
        names=_gates_before_ups,
        writing=WriteRules(names=fused("blk.*.attn_qkv", *QKV), drops_windows=True),
    ),
    "qwen2": Architecture("Qwen2ForCausalLM", writing=_PLAIN),
    "qwen2moe": Architecture(
        "Qwen2MoeForCausalLM",
        fields=_EXPERTS
        | {
            "moe_intermediate_size": "expert_feed_forward_length",
            "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        },
        fixed={"norm_topk_prob": False},
        writing=_PLAIN,
    ),
    "qwen3": Architecture("Qwen3ForCausalLM", writing=_PLAIN),
    "qwen3moe": Architecture(
        "Qwen3MoeForCausalLM",
        fields=_EXPERTS | {"moe_intermediate_size": "expert_feed_forward_length"},
        fixed={"norm_topk_prob": True},
        writing=_PLAIN,
    ),
    "seed_oss": Architecture(
        "SeedOssForCausalLM",
        present={
            "attention_bias": "blk.0.attn_q.bias",
            "attention_out_bias": "blk.0.attn_output.bias",
        },
        names=_norm_behind_attention,
    ),
    "smollm3": Architecture("SmolLM3ForCausalLM", names=_paired, writing=_PLAIN),
    "stablelm": Architecture(
        "StableLmForCausalLM",
        fields={"layer_norm_eps": _LAYER_NORM, "use_parallel_residual": "use_parallel_residual"},
        without=without("rms_norm_eps"),
        present={
            "use_qkv_bias": "blk.0.attn_q.bias",
            "qk_layernorm": "blk.0.attn_q_norm.weight",
        },
        partial=_PARTIAL,
    ),
    "starcoder2": Architecture(
        "Starcoder2ForCausalLM",
        fields={"norm_epsilon": _LAYER_NORM},
        without=without("rms_norm_eps"),
        writing=_PLAIN,
    ),
}
"""By ``general.architecture``; ``with experts`` stands for files that have some though others of
the same name do not."""
