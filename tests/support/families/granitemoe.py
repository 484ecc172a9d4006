"""Tiny checkpoints of Granite with experts, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "architectures": ["GraniteMoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.1,
    "attention_multiplier": 0.015625,
    "bos_token_id": 0,
    "embedding_multiplier": 12.0,
    "eos_token_id": 0,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 512,
    "logits_scaling": 6.0,
    "max_position_embeddings": 4096,
    "model_type": "granitemoe",
    "num_attention_heads": 16,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 2,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "output_router_logits": False,
    "pad_token_id": 0,
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000,
    "router_aux_loss_coef": 0.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.46.0.dev0",
    "use_cache": True,
    "vocab_size": 49155,
}
FAMILY = TinyFamily(
    config="GraniteMoeConfig",
    model="GraniteMoeForCausalLM",
    fields={
        "num_local_experts": 5,
        "num_experts_per_tok": 3,
        "intermediate_size": 28,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.4,
        "logits_scaling": 2.5,
    },
    cases={
        "granitemoe": {},
        "granitemoe-all-experts": {
            "num_local_experts": 3,
            "attention_bias": True,
            "embedding_multiplier": 0.5,
            "residual_multiplier": 1.5,
            "tie_word_embeddings": True,
            "num_key_value_heads": 4,
        },
        "granitemoe-one-expert": {
            "num_local_experts": 1,
            "num_experts_per_tok": 1,
            "num_key_value_heads": 1,
            **rope("linear", factor=2.0),
        },
    },
    published=PUBLISHED,
)
