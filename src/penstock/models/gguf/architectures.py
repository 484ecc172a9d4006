"""All architectures of GGUF files that are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from penstock.models.blocks import FULL, SLIDING
from penstock.models.gguf.architecture import Architecture, Fields, without
from penstock.models.gguf.gemma4 import GEMMA4
from penstock.models.gguf.keys import Keys
from penstock.models.gguf.latents import LATENTS
from penstock.models.gguf.mixtures import MIXTURES
from penstock.models.gguf.nets import NETS
from penstock.models.gguf.others import OTHERS
from penstock.models.gguf.parts import (
    DEEPSEEK_EXPERTS,
    EXPERTS,
    LAYER_NORM,
    PARTIAL,
    SIGMOID,
    gates_before_ups,
    norm_behind_attention,
    one_more_names,
    paired_names,
    read_attending,
    read_gating,
    read_windows,
)
from penstock.models.gguf.scans import SCANS, granite
from penstock.models.mixtures import CHOICE_BIAS
from penstock.models.name_forms import OneRow
from penstock.models.names import Name, either, fused, plain
from penstock.models.spec import ModelSpec

_GEMMA_27B: Final = {"gemma2": 46, "gemma3": 62}
"""The layers of the models whose scores are scaled by the hidden size of a head's share."""


def _gemma_scale(keys: Keys, fields: Fields) -> None:
    heads, head_dim = keys.integer("attention.head_count"), keys.integer("attention.key_length")
    if keys.integer("block_count") == _GEMMA_27B[keys.architecture]:
        head_dim = keys.integer("embedding_length") // heads
    fields["query_pre_attn_scalar"] = head_dim


def _gemma2(keys: Keys, fields: Fields) -> None:
    _gemma_scale(keys, fields)
    read_windows(keys, fields, 2, 4096)
    for cap, usual in (("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)):
        fields[cap] = keys.number(cap, usual) or None


def _gemma3(keys: Keys, fields: Fields) -> None:
    _gemma_scale(keys, fields)
    if not keys.value("attention.sliding_window"):
        raise keys.error("attention.sliding_window", "is required; convert the model again")
    read_windows(keys, fields, 6)
    fields["rope_local_base_freq"] = keys.number("rope.freq_base_swa", 10_000.0)
    fields["final_logit_softcapping"] = keys.number("final_logit_softcapping", 0.0) or None


def _phi3(keys: Keys, fields: Fields) -> None:
    # Converters write the window of models that were trained without one, too, so nobody reads it.
    keys.raw("attention.sliding_window")
    original = keys.raw("rope.scaling.original_context_length")
    if original is not None:
        fields["original_max_position_embeddings"] = original


def _gpt_oss(keys: Keys, fields: Fields) -> None:
    read_windows(keys, fields, 2)
    scaling = fields.get("rope_scaling")
    if isinstance(scaling, dict):  # files do not say so, and all models are so
        scaling["truncate"] = False


def _olmo2(keys: Keys, fields: Fields) -> None:
    """OLMo 3 is OLMo 2 with windows, where the rotation is not scaled."""
    if not keys.value("attention.sliding_window"):
        keys.raw("attention.sliding_window_pattern"), keys.raw("rope.freq_base_swa")
        return
    fields["architectures"] = ["Olmo3ForCausalLM"]
    read_windows(keys, fields, 4)
    theta = fields.pop("rope_theta")
    assert isinstance(theta, float)
    scaled = fields.pop("rope_scaling", {"rope_type": "default"})
    assert isinstance(scaled, dict)
    local = keys.number("rope.freq_base_swa", theta)
    fields["rope_parameters"] = {
        FULL: {"rope_theta": theta, **scaled},
        SLIDING: {"rope_theta": local, "rope_type": "default"},
    }


def _exaone4(keys: Keys, fields: Fields) -> None:
    if keys.value("attention.sliding_window"):
        read_windows(keys, fields, 4)
    else:
        fields["sliding_window"] = None


def _cohere2(keys: Keys, fields: Fields) -> None:
    read_windows(keys, fields, 4)


def _ernie_moe(keys: Keys, fields: Fields) -> None:
    fields["moe_layer_end_index"] = keys.integer("block_count") - 1


def _ernie_moe_names(spec: ModelSpec) -> Mapping[str, Name]:
    name = Name("blk.*.exp_probs_b", suffix=".bias")
    return either({CHOICE_BIAS: name}, {CHOICE_BIAS: replace(name, form=OneRow())})


def _lfm2(keys: Keys, fields: Fields) -> None:
    fields["layer_types"] = [FULL if each else "conv" for each in read_attending(keys, fields)]


def _lfm2_moe(keys: Keys, fields: Fields) -> None:
    _lfm2(keys, fields)
    read_gating(keys, SIGMOID, SIGMOID)
    fields["use_expert_bias"] = keys.has_tensor("exp_probs_b.bias")


def _lfm2_names(spec: ModelSpec) -> Mapping[str, Name]:
    at = "blk.*.shortconv."
    parts = (f"layers.*.conv_{name}" for name in "bcx")
    return plain({"layers.*.conv": f"{at}conv", "layers.*.conv_out": f"{at}out_proj"}) | (
        fused(f"{at}in_proj", *parts)
        | either(plain({"final_norm": "token_embd_norm"}), plain({"final_norm": "output_norm"}))
    )


def _falcon(keys: Keys, fields: Fields) -> None:
    """Some of the newer decoders, which share keys in groups, have one norm for both parts."""
    heads = keys.integer("attention.head_count")
    kv_heads = keys.integer("attention.head_count_kv", heads)
    norms = 2 if fields["new_decoder_architecture"] else 1
    new = norms == 2 or kv_heads not in (1, heads)
    fields |= {"num_kv_heads": kv_heads, "multi_query": kv_heads == 1 and not new}
    fields["new_decoder_architecture"] = new
    if new:
        fields["num_ln_in_parallel_attn"] = norms


def _falcon_names(spec: ModelSpec) -> Mapping[str, Name]:
    """Two norms in parallel, the second of which is that of attention."""
    if spec.layers[0].mlp_norm is None:
        return {}
    at = "blk.*.attn_norm"
    return plain({"layers.*.attn_norm": f"{at}_2", "layers.*.mlp_norm": at})


_LLAMA: Final = Architecture(
    "LlamaForCausalLM",
    present={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"},
    names=paired_names,
)
_GRANITE: Final = Architecture(
    "GraniteForCausalLM",
    fields={
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    },
    adjust=granite,
    names=paired_names,
)
_LFM2: Final = Architecture(
    "Lfm2ForCausalLM",
    fields={
        "norm_eps": "attention.layer_norm_rms_epsilon",
        "conv_L_cache": "shortconv.l_cache",
    },
    without=without("rms_norm_eps", "head_dim", "num_key_value_heads"),
    fixed={"block_auto_adjust_ff_dim": False},
    adjust=_lfm2,
    names=_lfm2_names,
)
_OLD: Final = without("rms_norm_eps", "head_dim", "num_key_value_heads")

_QWEN3_MOE: Final = Architecture(
    "Qwen3MoeForCausalLM",
    fields=EXPERTS | {"moe_intermediate_size": "expert_feed_forward_length"},
    fixed={"norm_topk_prob": True},
)
_SEEN: Final = frozenset({"rope.dimension_sections", "n_deepstack_layers"})
"""Keys of positions in images, and of what layers are given of these."""

ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "llama": _LLAMA,
    "llama with experts": replace(
        _LLAMA,
        family="MixtralForCausalLM",
        fields=EXPERTS,
        present={},
        idle_keys=frozenset({"expert_feed_forward_length"}),
    ),
    "arcee": Architecture("ArceeForCausalLM", names=paired_names),
    "bloom": Architecture(
        "BloomForCausalLM",
        fields={"layer_norm_epsilon": LAYER_NORM},
        without=_OLD | {"intermediate_size"},
        rotates=False,
        idle_keys=frozenset(
            {"feed_forward_length", "attention.head_count_kv", "attention.max_alibi_bias"}
        ),
    ),
    "cohere2": Architecture(
        "Cohere2ForCausalLM",
        fields={"layer_norm_eps": LAYER_NORM, "logit_scale": "logit_scale"},
        without=without("rms_norm_eps"),
        adjust=_cohere2,
    ),
    "command-r": Architecture(
        "CohereForCausalLM",
        fields={"layer_norm_eps": LAYER_NORM, "logit_scale": "logit_scale"},
        without=without("rms_norm_eps"),
        present={"use_qk_norm": "blk.0.attn_q_norm.weight"},
    ),
    "dots1": Architecture(
        "Dots1ForCausalLM",
        fields=DEEPSEEK_EXPERTS,
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
        fields={"layer_norm_epsilon": LAYER_NORM},
        without=_OLD | {"intermediate_size"},
        fixed={"parallel_attn": True, "bias": False},
        present={"new_decoder_architecture": "blk.0.attn_norm_2.weight"},
        adjust=_falcon,
        names=_falcon_names,
        idle_keys=frozenset({"tensor_data_layout", "feed_forward_length"}),
    ),
    "gemma": Architecture("GemmaForCausalLM", names=one_more_names),
    "gemma2": Architecture("Gemma2ForCausalLM", adjust=_gemma2, names=one_more_names),
    "gemma3": Architecture("Gemma3ForCausalLM", adjust=_gemma3, names=one_more_names),
    "glm4": Architecture(
        "Glm4ForCausalLM",
        present={"attention_bias": "blk.0.attn_q.bias"},
        partial=PARTIAL,
        names=gates_before_ups,
    ),
    "gpt-oss": Architecture(
        "GptOssForCausalLM",
        fields=EXPERTS | {"intermediate_size": "expert_feed_forward_length"},
        idle_keys=frozenset({"feed_forward_length"}),
        adjust=_gpt_oss,
        names=norm_behind_attention,
    ),
    "gpt2": Architecture(
        "GPT2LMHeadModel",
        fields={"layer_norm_epsilon": LAYER_NORM, "n_inner": "feed_forward_length"},
        without=_OLD | {"intermediate_size"},
        rotates=False,
    ),
    "granite": _GRANITE,
    "granitemoe": replace(
        _GRANITE, family="GraniteMoeForCausalLM", fields={**_GRANITE.fields, **EXPERTS}
    ),
    "hunyuan-dense": Architecture("HunYuanDenseV1ForCausalLM"),
    "lfm2": _LFM2,
    "lfm2moe": replace(
        _LFM2,
        family="Lfm2MoeForCausalLM",
        fields={
            **_LFM2.fields,
            **EXPERTS,
            "moe_intermediate_size": "expert_feed_forward_length",
            "num_dense_layers": "leading_dense_block_count",
        },
        fixed={},
        adjust=_lfm2_moe,
    ),
    "nemotron": Architecture(
        "NemotronForCausalLM",
        fields={"norm_eps": LAYER_NORM},
        without=without("rms_norm_eps"),
        partial=PARTIAL,
        names=one_more_names,
        idle_keys=frozenset({"attention.layer_norm_rms_epsilon"}),
    ),
    "olmo": Architecture(
        "OlmoForCausalLM",
        fields={"clip_qkv": "attention.clamp_kqv"},
        without=without("rms_norm_eps", "head_dim"),
        names=paired_names,
        idle_keys=frozenset({LAYER_NORM}),
    ),
    "olmo2": Architecture("Olmo2ForCausalLM", adjust=_olmo2),
    "olmoe": Architecture("OlmoeForCausalLM", fields=EXPERTS, fixed={"norm_topk_prob": False}),
    "phi2": Architecture(
        "PhiForCausalLM",
        fields={"layer_norm_eps": LAYER_NORM},
        without=without("rms_norm_eps"),
        partial=PARTIAL,
    ),
    "phi3": Architecture("Phi3ForCausalLM", partial=PARTIAL, adjust=_phi3, names=gates_before_ups),
    "qwen2": Architecture("Qwen2ForCausalLM"),
    "qwen2moe": Architecture(
        "Qwen2MoeForCausalLM",
        fields=EXPERTS
        | {
            "moe_intermediate_size": "expert_feed_forward_length",
            "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        },
        fixed={"norm_topk_prob": False},
    ),
    "qwen3": Architecture("Qwen3ForCausalLM"),
    "qwen2vl": Architecture("Qwen2ForCausalLM", idle_keys=_SEEN),
    "qwen3moe": _QWEN3_MOE,
    "qwen3vl": Architecture("Qwen3ForCausalLM", idle_keys=_SEEN),
    "qwen3vlmoe": replace(_QWEN3_MOE, idle_keys=_SEEN),
    "seed_oss": Architecture(
        "SeedOssForCausalLM",
        present={
            "attention_bias": "blk.0.attn_q.bias",
            "attention_out_bias": "blk.0.attn_output.bias",
        },
        names=norm_behind_attention,
    ),
    "smollm3": Architecture("SmolLM3ForCausalLM", names=paired_names),
    "stablelm": Architecture(
        "StableLmForCausalLM",
        fields={"layer_norm_eps": LAYER_NORM, "use_parallel_residual": "use_parallel_residual"},
        without=without("rms_norm_eps"),
        present={
            "use_qkv_bias": "blk.0.attn_q.bias",
            "qk_layernorm": "blk.0.attn_q_norm.weight",
        },
        partial=PARTIAL,
    ),
    "starcoder2": Architecture(
        "Starcoder2ForCausalLM",
        fields={"norm_epsilon": LAYER_NORM},
        without=without("rms_norm_eps"),
    ),
    "gemma4": GEMMA4,
    **LATENTS,
    **MIXTURES,
    **NETS,
    **OTHERS,
    **SCANS,
}
"""Architectures by ``general.architecture``; ``with experts`` stands for files that have some
though others of the same name do not."""
