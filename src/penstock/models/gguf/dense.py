"""Decoders with plain MLPs in GGUF files, most of them like Llama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.models.blocks import FULL, SLIDING
from penstock.models.gguf.architecture import Architecture, Fields, without
from penstock.models.gguf.keys import Keys
from penstock.models.gguf.parts import (
    GRANITE_FACTORS,
    LAYER_NORM,
    PARTIAL,
    gates_before_ups,
    norm_behind_attention,
    one_more_names,
    paired_names,
    read_either_norm,
    read_windows,
)
from penstock.models.gguf.scans import granite


def _baichuan(keys: Keys, fields: Fields) -> None:
    """The output matrix is multiplied as it is, as llama.cpp does: only some files of the second
    generation have its rows divided by their lengths."""
    if keys.layers == _BAICHUAN_13B:
        raise keys.error(
            "block_count",
            f"is {_BAICHUAN_13B}, that of Baichuan 13B, which has no rotation and is not "
            "supported; take a file of 7B",
        )


def _phi3(keys: Keys, fields: Fields) -> None:
    # Converters write the window of models that were trained without one, too, so nobody reads it.
    keys.raw("attention.sliding_window")
    original = keys.raw("rope.scaling.original_context_length")
    if original is not None:
        fields["original_max_position_embeddings"] = original


def _olmo2(keys: Keys, fields: Fields) -> None:
    """OLMo 3 is OLMo 2 with windows, where the rotation is not scaled."""
    if not keys.value("attention.sliding_window"):
        keys.raw("attention.sliding_window_pattern"), keys.raw("rope.freq_base_swa")
        return
    fields["architectures"] = ["Olmo3ForCausalLM"]
    read_windows(keys, fields, 4)
    del fields["rope_theta"]
    theta = keys.number("rope.freq_base", 10_000.0)
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


def _minicpm(keys: Keys, fields: Fields) -> None:
    """Factors, which the first files leave out: those of MiniCPM 2B."""
    hidden, layers = keys.integer("embedding_length"), keys.layers
    fields["scale_emb"] = keys.number("embedding_scale", 12.0)
    residual = keys.raw("residual_scale")
    told = keys.number("residual_scale", 0.0) * layers**0.5
    fields["scale_depth"] = 1.4 if residual is None else round(told, 6)
    scale = keys.number("logit_scale", hidden / 256)
    if not scale > 0:
        raise keys.error("logit_scale", "must be greater than 0; convert the model again")
    fields["dim_model_base"] = round(hidden / scale, 3)


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


_BAICHUAN_13B: Final = 40
"""Its layers: nothing else in a file says of which kind a model is."""
LLAMA: Final = Architecture(
    "LlamaForCausalLM",
    present={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"},
    names=paired_names,
)
GRANITE: Final = Architecture(
    "GraniteForCausalLM",
    fields=GRANITE_FACTORS,
    adjust=granite,
    names=paired_names,
)
SEEN: Final = frozenset({"rope.dimension_sections", "n_deepstack_layers"})
"""Keys of positions in images, and of what layers are given of these."""

DENSE: Final[Mapping[str, Architecture]] = {
    "llama": LLAMA,
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
    "arcee": Architecture("ArceeForCausalLM", names=paired_names),
    "baichuan": Architecture("LlamaForCausalLM", adjust=_baichuan, names=paired_names),
    "chatglm": Architecture(
        "GlmForCausalLM",
        partial=PARTIAL,
        adjust=_chatglm,
        names=gates_before_ups,
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
    "ernie4_5": Architecture("Ernie4_5ForCausalLM"),
    "exaone": Architecture(
        "LlamaForCausalLM",
        adjust=lambda keys, fields: read_either_norm(keys, fields, "rms_norm_eps"),
    ),
    "exaone4": Architecture("Exaone4ForCausalLM", adjust=_exaone4),
    "glm4": Architecture(
        "Glm4ForCausalLM",
        present={"attention_bias": "blk.0.attn_q.bias"},
        partial=PARTIAL,
        names=gates_before_ups,
    ),
    "granite": GRANITE,
    "hunyuan-dense": Architecture("HunYuanDenseV1ForCausalLM"),
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
    "phi2": Architecture(
        "PhiForCausalLM",
        fields={"layer_norm_eps": LAYER_NORM},
        without=without("rms_norm_eps"),
        partial=PARTIAL,
    ),
    "phi3": Architecture("Phi3ForCausalLM", partial=PARTIAL, adjust=_phi3, names=gates_before_ups),
    "phimoe": Architecture(
        "PhimoeForCausalLM",
        fields={
            "num_local_experts": "expert_count",
            "num_experts_per_tok": "expert_used_count",
        },
        without=without("head_dim"),
        present={
            "attention_bias": "blk.0.attn_output.bias",
            "lm_head_bias": "output.bias",
        },
        adjust=_phi3,
        idle_keys=frozenset({"attention.key_length", "attention.value_length"}),
    ),
    "qwen2": Architecture("Qwen2ForCausalLM"),
    "qwen2vl": Architecture("Qwen2ForCausalLM", idle_keys=SEEN),
    "qwen3": Architecture("Qwen3ForCausalLM"),
    "qwen3vl": Architecture("Qwen3ForCausalLM", idle_keys=SEEN),
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
}
"""These architectures, by ``general.architecture``."""
