"""The forms of GGUF files, by family."""

from __future__ import annotations

from dataclasses import replace

from gguf import MODEL_ARCH as ARCH

from support.gguf_form_parts import (
    DEEPSEEK,
    HEADS,
    NETS,
    NO,
    RANKS,
    ROUTING,
    SCANS,
    SECTIONS,
    YARN,
    falcon_h1_tensors,
    full_of,
    gates_and_ups,
    gemma4_tensors,
    granite_tensors,
    in_pairs,
    inner_of,
    joined_heads,
    kv_heads_of,
    lfm2_tensors,
    nemotron_tensors,
    nemotron_widths,
    net_tensors,
    of_kinds,
    qk_of,
    scan_tensors,
    without_activations,
)
from support.gguf_forms import Form, rope_of, rotating_of

FORMS: dict[str, Form] = {
    "apertus": Form(
        ARCH.APERTUS,
        {f"xielu.{name}": lambda c: [0.5, 0.25] for name in ("alpha_p", "alpha_n", "beta", "eps")},
        without_activations,
    ),
    "bamba": Form(
        ARCH.GRANITE_HYBRID,
        {
            **SCANS,
            "attention.head_count_kv": kv_heads_of,
            "rope.dimension_count": rotating_of,
            "rope.scaling.finetuned": lambda c: True,
            "ssm.inner_size": inner_of,
        },
        granite_tensors,
    ),
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "falcon": Form(
        ARCH.FALCON,
        {
            "attention.head_count_kv": "num_kv_heads",
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
            "context_length": lambda c: 256,
        },
        joined_heads,
    ),
    "falcon_h1": Form(
        ARCH.FALCON_H1, {**HEADS, **SCANS, "ssm.inner_size": inner_of}, falcon_h1_tensors
    ),
    "gemma4_text": Form(
        ARCH.GEMMA4,
        {
            "attention.head_count_kv": lambda c: of_kinds(c, "num_key_value_heads"),
            "attention.key_length": lambda c: full_of(c, "head_dim"),
            "attention.value_length": lambda c: full_of(c, "head_dim"),
            "attention.key_length_swa": "head_dim",
            "attention.value_length_swa": "head_dim",
            "attention.shared_kv_layers": "num_kv_shared_layers",
            "attention.sliding_window": "sliding_window",
            "attention.sliding_window_pattern": lambda c: [
                kind == "sliding_attention" for kind in c["layer_types"]
            ],
            "embedding_length_per_layer_input": "hidden_size_per_layer_input",
            "expert_count": "num_experts",
            "expert_used_count": "top_k_experts",
            "expert_feed_forward_length": "moe_intermediate_size",
            "feed_forward_length": lambda c: [
                c["intermediate_size"]
                * (1 + (i >= len(c["layer_types"]) - c["num_kv_shared_layers"]))
                if c["use_double_wide_mlp"]
                else c["intermediate_size"]
                for i in range(len(c["layer_types"]))
            ],
            "final_logit_softcapping": "final_logit_softcapping",
            "rope.dimension_count": lambda c: full_of(c, "head_dim"),
            "rope.dimension_count_swa": "head_dim",
            "rope.freq_base_swa": lambda c: c["rope_parameters"]["sliding_attention"]["rope_theta"],
        },
        gemma4_tensors,
    ),
    "glm": Form(ARCH.CHATGLM, {"rope.dimension_count": rotating_of}),
    "glm4_moe": Form(ARCH.GLM4_MOE, {**HEADS, **ROUTING, "rope.dimension_count": rotating_of}),
    "gpt_bigcode": Form(
        ARCH.STARCODER,
        {
            "attention.head_count_kv": lambda c: 1,
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
            "feed_forward_length": lambda c: 4 * c["n_embd"],
        },
    ),
    "gpt_neox": Form(
        ARCH.GPTNEOX,
        {
            "attention.layer_norm_epsilon": "layer_norm_eps",
            "rope.dimension_count": rotating_of,
            "use_parallel_residual": "use_parallel_residual",
        },
        joined_heads,
    ),
    "granitemoehybrid": Form(
        ARCH.GRANITE_HYBRID,
        {
            **SCANS,
            "attention.head_count_kv": kv_heads_of,
            "attention.scale": "attention_multiplier",
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "logit_scale": "logits_scaling",
            "expert_shared_feed_forward_length": "shared_intermediate_size",
            "rope.scaling.finetuned": lambda c: False,
            "ssm.inner_size": inner_of,
        },
        granite_tensors,
    ),
    "jais2": Form(ARCH.JAIS2, {**HEADS, "attention.layer_norm_epsilon": "layer_norm_eps"}),
    "lfm2_moe": Form(
        ARCH.LFM2MOE,
        {
            "attention.head_count_kv": kv_heads_of,
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_gating_func": lambda c: 2,
            "leading_dense_block_count": "num_dense_layers",
            "shortconv.l_cache": "conv_L_cache",
        },
        lfm2_tensors,
    ),
    "llama4_text": Form(
        ARCH.LLAMA4,
        {
            **HEADS,
            "expert_feed_forward_length": "intermediate_size",
            "feed_forward_length": "intermediate_size_mlp",
            "interleave_moe_layer_step": "interleave_moe_layer_step",
        },
        gates_and_ups,
    ),
    "mamba2": Form(
        ARCH.MAMBA2,
        {
            **SCANS,
            "attention.head_count": lambda c: 0,
            "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
            "feed_forward_length": lambda c: 0,
            "ssm.inner_size": lambda c: c["num_heads"] * c["head_dim"],
        },
        scan_tensors,
    ),
    "minicpm3": Form(ARCH.MINICPM3, {**RANKS, "attention.key_length": qk_of}),
    "minimax_m2": Form(
        ARCH.MINIMAXM2,
        {
            **HEADS,
            "expert_feed_forward_length": "intermediate_size",
            "expert_gating_func": lambda c: 2,
            "rope.dimension_count": rotating_of,
        },
    ),
    "ministral3": Form(
        ARCH.MISTRAL3,
        {
            **HEADS,
            **YARN,
            "attention.temperature_scale": lambda c: rope_of(c)["llama_4_scaling_beta"],
            "rope.scaling.yarn_log_multiplier": lambda c: rope_of(c)["mscale_all_dim"],
        },
        lambda name, values, config: [(name, in_pairs(name, values, config))],
    ),
    "mpt": Form(
        ARCH.MPT,
        {
            "attention.layer_norm_epsilon": "layer_norm_epsilon",
            "attention.max_alibi_bias": lambda c: 8.0,
            "feed_forward_length": lambda c: 4 * c["d_model"],
        },
    ),
    "nemotron_h": Form(
        ARCH.NEMOTRON_H_MOE,
        {
            **HEADS,
            **SCANS,
            **ROUTING,
            "attention.head_count_kv": kv_heads_of,
            "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
            "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
            "feed_forward_length": nemotron_widths,
            "rope.scaling.finetuned": lambda c: False,
            "ssm.inner_size": lambda c: c["mamba_num_heads"] * c["mamba_head_dim"],
        },
        nemotron_tensors,
    ),
    "olmo3": Form(
        ARCH.OLMO2,
        {
            **YARN,
            "rope.freq_base_swa": lambda c: c["rope_parameters"]["sliding_attention"]["rope_theta"],
            "attention.sliding_window": "sliding_window",
            "attention.sliding_window_pattern": lambda c: [
                kind == "sliding_attention" for kind in c["layer_types"]
            ],
        },
    ),
    "qwen3_5_moe_text": Form(
        ARCH.QWEN35MOE, {**NETS, "rope.dimension_sections": lambda c: [1, 1, 0, 0]}, net_tensors
    ),
    "qwen3_5_text": Form(
        ARCH.QWEN35, {**NETS, "rope.dimension_sections": lambda c: [1, 1, 0, 0]}, net_tensors
    ),
    "qwen3_next": Form(ARCH.QWEN3NEXT, NETS, net_tensors),
}
"""Forms by the names that the families have among the tests' tiny checkpoints."""

IN_PAIRS = Form(ARCH.INTERNLM2, {}, lambda name, values, c: [(name, in_pairs(name, values, c))])
LIKE_OTHERS: dict[str, tuple[str, Form]] = {
    "exaone": (
        "llama",
        Form(
            ARCH.EXAONE,
            {
                "attention.layer_norm_epsilon": "rms_norm_eps",
                "attention.layer_norm_rms_epsilon": NO,
            },
        ),
    ),
    "internlm2": ("llama", IN_PAIRS),
    "minicpm": (
        "granite",
        replace(
            IN_PAIRS,
            arch=ARCH.MINICPM,
            keys={
                "embedding_scale": "embedding_multiplier",
                "residual_scale": "residual_multiplier",
                "logit_scale": "logits_scaling",
            },
        ),
    ),
    "qwen2vl": ("qwen2", Form(ARCH.QWEN2VL, SECTIONS)),
    "qwen3vl": (
        "qwen3",
        Form(ARCH.QWEN3VL, {**HEADS, **SECTIONS, "n_deepstack_layers": lambda c: 3}),
    ),
    "qwen3vlmoe": (
        "qwen3_moe",
        Form(
            ARCH.QWEN3VLMOE,
            {**HEADS, **SECTIONS, "expert_feed_forward_length": "moe_intermediate_size"},
        ),
    ),
}
"""Architectures that are a family by another name, which the tests have checkpoints of."""
