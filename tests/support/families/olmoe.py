"""Tiny checkpoints of OLMoE, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "architectures": ["OlmoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "clip_qkv": None,
    "eos_token_id": 50279,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 1024,
    "max_position_embeddings": 4096,
    "model_type": "olmoe",
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 2,
    "num_key_value_heads": 16,
    "output_router_logits": False,
    "pad_token_id": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "router_aux_loss_coef": 0.01,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0.dev0",
    "use_cache": True,
    "vocab_size": 50304,
}
FAMILY = TinyFamily(
    config="OlmoeConfig",
    model="OlmoeForCausalLM",
    fields={"num_experts": 5, "num_experts_per_tok": 3, "intermediate_size": 28},
    cases={
        "olmoe": {},
        "olmoe-normalized": {
            "norm_topk_prob": True,
            "clip_qkv": 0.8,
            "attention_bias": True,
            "num_key_value_heads": 1,
            "num_attention_heads": 8,
        },
        "olmoe-all-experts": {
            "num_experts": 3,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
        },
    },
    published=PUBLISHED,
)
