"""Tiny checkpoints of Qwen2 with experts, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "architectures": ["Qwen2MoeForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 5632,
    "max_position_embeddings": 8192,
    "max_window_layers": 21,
    "model_type": "qwen2_moe",
    "moe_intermediate_size": 1408,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 16,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 5632,
    "sliding_window": 32768,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.39.0.dev0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
FAMILY = TinyFamily(
    config="Qwen2MoeConfig",
    model="Qwen2MoeForCausalLM",
    fields={
        "num_experts": 5,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 28,
        "shared_expert_intermediate_size": 44,
    },
    cases={
        "qwen2-moe": {},
        "qwen2-moe-some": {
            "num_hidden_layers": 5,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "norm_topk_prob": True,
            "num_key_value_heads": 1,
            "qkv_bias": False,
        },
        "qwen2-moe-window": {
            "num_hidden_layers": 4,
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 2,
            "tie_word_embeddings": True,
        },
        "qwen2-moe-layer-types": {
            "use_sliding_window": True,
            "sliding_window": 13,
            "layer_types": ["full_attention", "sliding_attention"],
            "num_experts": 3,
        },
    },
    published=PUBLISHED,
)
