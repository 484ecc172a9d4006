"""Tiny checkpoints of GLM-4.7-Flash, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "architectures": ["Glm4MoeLiteForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "dtype": "bfloat16",
    "eos_token_id": [154820, 154827, 154829],
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 10240,
    "kv_lora_rank": 512,
    "max_position_embeddings": 202752,
    "model_type": "glm4_moe_lite",
    "moe_intermediate_size": 1536,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 20,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 20,
    "num_nextn_predict_layers": 1,
    "pad_token_id": 154820,
    "partial_rotary_factor": 1.0,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "routed_scaling_factor": 1.8,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "transformers_version": "5.0.0",
    "v_head_dim": 256,
    "vocab_size": 154880,
}
FAMILY = TinyFamily(
    config="Glm4MoeLiteConfig",
    model="Glm4MoeLiteForCausalLM",
    fields={
        "num_key_value_heads": 4,
        "q_lora_rank": 28,
        "kv_lora_rank": 40,
        "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 8,
        "v_head_dim": 36,
        "n_routed_experts": 5,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 28,
    },
    cases={
        "glm4-moe-lite": {},
        "glm4-moe-lite-layers": {
            "num_hidden_layers": 4,
            "mlp_layer_types": ["sparse", "dense", "sparse", "dense"],
            "n_routed_experts": 9,
            "n_group": 3,
            "topk_group": 2,
            "norm_topk_prob": False,
            "q_lora_rank": None,
            "attention_bias": True,
        },
    },
    published=PUBLISHED,
)
