"""Tiny checkpoints of Ernie 4.5 with experts, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "architectures": ["Ernie4_5_MoeForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "max_position_embeddings": 131072,
    "model_type": "ernie4_5_moe",
    "moe_capacity": [64, 64, 64],
    "moe_gate": "topk",
    "moe_intermediate_size": 1536,
    "moe_k": 6,
    "moe_layer_end_index": 29,
    "moe_layer_interval": 1,
    "moe_layer_start_index": 1,
    "moe_num_experts": 64,
    "moe_num_shared_experts": 2,
    "moe_use_aux_free": True,
    "num_attention_heads": 20,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "num_nextn_predict_layers": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.54.0.dev0",
    "use_bias": False,
    "use_cache": True,
    "use_rmsnorm": True,
    "vocab_size": 103424,
}
FAMILY = TinyFamily(
    config="Ernie4_5_MoeConfig",
    model="Ernie4_5_MoeForCausalLM",
    fields={
        "moe_num_experts": 5,
        "moe_k": 3,
        "moe_intermediate_size": 28,
    },
    cases={
        "ernie4-5-moe": {},
        "ernie4-5-moe-biases": {
            "use_bias": True,
            "tie_word_embeddings": False,
            "num_key_value_heads": 1,
            "head_dim": 48,
            "moe_num_shared_experts": 1,
        },
        "ernie4-5-moe-some": {
            "use_bias": True,
            "num_hidden_layers": 7,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 4,
            "moe_layer_interval": 2,
            "moe_num_shared_experts": 0,
        },
        # Shares that are less than this together are not made 1.
        "ernie4-5-moe-least": {"moe_norm_min": 0.8, "moe_k": 2, "moe_num_experts": 8},
    },
    published=PUBLISHED,
)
