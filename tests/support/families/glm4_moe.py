"""Tiny checkpoints of GLM-4.5, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "pad_token_id": 151329,
    "eos_token_id": [151329, 151336, 151338],
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "partial_rotary_factor": 0.5,
    "initializer_range": 0.02,
    "intermediate_size": 12288,
    "max_position_embeddings": 131072,
    "model_type": "glm4_moe",
    "moe_intermediate_size": 1536,
    "norm_topk_prob": True,
    "num_attention_heads": 96,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 160,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.54.0",
    "use_cache": True,
    "use_qk_norm": True,
    "vocab_size": 151552,
}
FAMILY = TinyFamily(
    config="Glm4MoeConfig",
    model="Glm4MoeForCausalLM",
    fields={
        "head_dim": 16,
        "n_routed_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 28,
        "routed_scaling_factor": 1.5,
    },
    cases={
        "glm4-moe": {"use_qk_norm": True, "attention_bias": True},
        "glm4-moe-groups": {
            "n_routed_experts": 12,
            "n_group": 4,
            "topk_group": 2,
            "n_shared_experts": 2,
            "first_k_dense_replace": 0,
            "num_key_value_heads": 1,
            "head_dim": 48,
        },
        "glm4-moe-unnormalized": {
            "num_hidden_layers": 4,
            "first_k_dense_replace": 2,
            "n_routed_experts": 6,
            "n_group": 3,
            "topk_group": 2,
            "norm_topk_prob": False,
            "num_nextn_predict_layers": 0,
            "tie_word_embeddings": True,
        },
        "glm4-moe-whole-heads": {
            "n_routed_experts": 3,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 50000.0,
                "partial_rotary_factor": 1.0,
            },
        },
    },
    published=PUBLISHED,
)
