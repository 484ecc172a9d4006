"""Tiny checkpoints of Mixtral, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mixtral",
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.36.0.dev0",
    "use_cache": True,
    "vocab_size": 32000,
}
FAMILY = TinyFamily(
    config="MixtralConfig",
    model="MixtralForCausalLM",
    fields={"num_local_experts": 5, "num_experts_per_tok": 3, "intermediate_size": 28},
    cases={
        "mixtral": {},
        "mixtral-one-expert": {"num_local_experts": 1, "num_experts_per_tok": 1},
        "mixtral-all-experts": {
            "num_local_experts": 4,
            "num_experts_per_tok": 4,
            "num_key_value_heads": 1,
            "head_dim": 48,
            "tie_word_embeddings": True,
        },
        "mixtral-window": {
            "sliding_window": 11,
            "num_local_experts": 12,
            "hidden_act": "gelu",
            "num_key_value_heads": 4,
        },
    },
    served={"sliding_window": 21},
    published=PUBLISHED,
)
