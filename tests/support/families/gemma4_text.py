"""Tiny checkpoints of Gemma 4, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

KINDS = [["sliding_attention", "full_attention"][i % 3 == 2] for i in range(9)]
PUBLISHED: dict[str, Any] = {
    "architectures": ["Gemma4ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attention_k_eq_v": False,
    "bos_token_id": 2,
    "dtype": "bfloat16",
    "enable_moe_block": False,
    "eos_token_id": 1,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1536,
    "hidden_size_per_layer_input": 256,
    "initializer_range": 0.02,
    "intermediate_size": 6144,
    "layer_types": KINDS,
    "max_position_embeddings": 131072,
    "model_type": "gemma4_text",
    "moe_intermediate_size": None,
    "num_attention_heads": 8,
    "num_experts": None,
    "num_global_key_value_heads": None,
    "num_hidden_layers": 9,
    "num_key_value_heads": 1,
    "num_kv_shared_layers": 4,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "full_attention": {
            "partial_rotary_factor": 0.25,
            "rope_theta": 1000000.0,
            "rope_type": "proportional",
        },
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "sliding_window": 512,
    "tie_word_embeddings": True,
    "top_k_experts": None,
    "transformers_version": "5.5.0",
    "use_bidirectional_attention": None,
    "use_cache": True,
    "use_double_wide_mlp": True,
    "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
}
EXPERTS = {
    "enable_moe_block": True,
    "num_experts": 5,
    "top_k_experts": 3,
    "moe_intermediate_size": 28,
}
FAMILY = TinyFamily(
    config="Gemma4TextConfig",
    model="Gemma4ForCausalLM",
    fields={
        "num_hidden_layers": 6,
        "layer_types": KINDS[:6],
        "num_key_value_heads": 1,
        "head_dim": 16,
        "global_head_dim": 48,
        "sliding_window": 9,
        "hidden_size_per_layer_input": 12,
        "vocab_size_per_layer_input": 301,
        "final_logit_softcapping": 6.0,
    },
    factors={"q_norm.weight": 0.12},
    buffers=("layer_scalar",),
    cases={
        "gemma4": {"num_kv_shared_layers": 3, "use_double_wide_mlp": True},
        "gemma4-shared-keys": {
            "attention_k_eq_v": True,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 0,
            "final_logit_softcapping": None,
            "tie_word_embeddings": False,
        },
        "gemma4-plain": {
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 1,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]
            + ["full_attention"],
            "tie_word_embeddings": False,
            "vocab_size_per_layer_input": 310,
            "hidden_activation": "silu",
            "attention_bias": True,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
                "sliding_attention": {
                    "rope_type": "proportional",
                    "factor": 4.0,
                    "rope_theta": 100.0,
                    "partial_rotary_factor": 0.6,
                },
            },
        },
        "gemma4-experts": {
            **EXPERTS,
            "hidden_size_per_layer_input": 0,
            "num_key_value_heads": 2,
        },
        "gemma4-experts-shared-kv": {
            **EXPERTS,
            "top_k_experts": 1,
            "moe_intermediate_size": 44,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
            "hidden_activation": "silu",
        },
    },
    served={"num_kv_shared_layers": 2, "attention_k_eq_v": True},
    published=PUBLISHED,
)
