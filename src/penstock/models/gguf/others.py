"""Further architectures of GGUF files with plain MLPs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.models.gguf.architecture import Architecture, Fields, without
from penstock.models.gguf.keys import Keys
from penstock.models.gguf.parts import (
    LAYER_NORM,
    PARTIAL,
    gates_before_ups,
    paired_names,
    read_either_norm,
)

_OLD: Final = without("rms_norm_eps", "head_dim", "num_key_value_heads")
_MPT_SLOPES: Final = 8.0
"""What slopes are made of in all MPT models."""


def _minicpm(keys: Keys, fields: Fields) -> None:
    """Factors, which the first files leave out: those of MiniCPM 2B."""
    hidden, layers = keys.integer("embedding_length"), keys.layers
    fields["scale_emb"] = keys.number("embedding_scale", 12.0)
    residual = keys.raw("residual_scale")
    told = keys.number("residual_scale", 0.0) * layers**0.5
    fields["scale_depth"] = 1.4 if residual is None else round(told, 6)
    base = hidden / keys.number("logit_scale", hidden / 256)
    fields["dim_model_base"] = round(base, 3)


def _mpt(keys: Keys, fields: Fields) -> None:
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    if keys.number("attention.max_alibi_bias", 0.0) != _MPT_SLOPES:
        raise keys.error("attention.max_alibi_bias", "must be 8: others are not supported")
    if keys.integer("attention.head_count_kv", heads) != heads:
        raise keys.error("attention.head_count_kv", f"must be {heads}, one for each head")
    if keys.integer("feed_forward_length", 4 * hidden) != 4 * hidden:
        raise keys.error("feed_forward_length", f"must be {4 * hidden}")
    clip = keys.number("attention.clamp_kqv", 0.0)
    fields["attn_config"] = {"alibi": True, "clip_qkv": clip or None}


def _starcoder(keys: Keys, fields: Fields) -> None:
    heads = keys.integer("attention.head_count")
    kv_heads = keys.integer("attention.head_count_kv", heads)
    if kv_heads not in (1, heads):
        raise keys.error("attention.head_count_kv", f"must be 1 or {heads}")
    fields["multi_query"] = kv_heads == 1


def _chatglm(keys: Keys, fields: Fields) -> None:
    joined = keys.has_tensor("blk.0.attn_qkv.bias")
    fields["attention_bias"] = joined or keys.has_tensor("blk.0.attn_q.bias")


def _mistral3(keys: Keys, fields: Fields) -> None:
    """Ministral 3's queries grow with the position; other files of the name are Mistral's."""
    beta = keys.number("attention.temperature_scale", 0.0)
    if not beta:
        fields["architectures"] = ["MistralForCausalLM"]
        return
    scaling = fields.get("rope_scaling")
    if not isinstance(scaling, dict) or scaling.get("rope_type") != "yarn":
        raise keys.error("rope.scaling.type", "must be yarn, as queries grow with the position")
    scaling["llama_4_scaling_beta"] = beta


OTHERS: Final[Mapping[str, Architecture]] = {
    "apertus": Architecture(
        "ApertusForCausalLM",
        present={"attention_bias": "blk.0.attn_q.bias"},
        values={
            "layers.*.act_p": "xielu.alpha_p",
            "layers.*.act_n": "xielu.alpha_n",
            "layers.*.act_beta": "xielu.beta",
            "layers.*.act_eps": "xielu.eps",
        },
    ),
    "chatglm": Architecture(
        "GlmForCausalLM",
        partial=PARTIAL,
        adjust=_chatglm,
        names=gates_before_ups,
    ),
    "exaone": Architecture(
        "LlamaForCausalLM",
        adjust=lambda keys, fields: read_either_norm(keys, fields, "rms_norm_eps"),
    ),
    "gptneox": Architecture(
        "GPTNeoXForCausalLM",
        fields={
            "layer_norm_eps": LAYER_NORM,
            "use_parallel_residual": "use_parallel_residual",
            "rotary_emb_base": "rope.freq_base",
        },
        without=_OLD | {"rope_theta"},
        present={"attention_bias": "blk.0.attn_qkv.bias"},
        partial="rotary_pct",
    ),
    "internlm2": Architecture(
        "LlamaForCausalLM",
        present={"attention_bias": "blk.0.attn_q.bias"},
        names=paired_names,
    ),
    "jais2": Architecture(
        "Jais2ForCausalLM",
        fields={"layer_norm_eps": LAYER_NORM},
        without=without("rms_norm_eps"),
        present={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"},
    ),
    "minicpm": Architecture("MiniCPMForCausalLM", adjust=_minicpm, names=paired_names),
    "mistral3": Architecture("Ministral3ForCausalLM", adjust=_mistral3, names=paired_names),
    "mpt": Architecture(
        "MptForCausalLM",
        fields={"layer_norm_epsilon": LAYER_NORM},
        without=_OLD | {"intermediate_size"},
        rotates=False,
        adjust=_mpt,
    ),
    "starcoder": Architecture(
        "GPTBigCodeForCausalLM",
        fields={"layer_norm_epsilon": LAYER_NORM, "n_inner": "feed_forward_length"},
        without=_OLD | {"intermediate_size"},
        rotates=False,
        adjust=_starcoder,
    ),
}
"""Further architectures of dense models, by ``general.architecture``."""
