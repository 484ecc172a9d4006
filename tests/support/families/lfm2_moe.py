"""Tiny checkpoints of LFM2 with experts, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily
from support.families.lfm2 import CONV, FULL

PUBLISHED: dict[str, Any] = {
    "architectures": ["Lfm2MoeForCausalLM"],
    "bos_token_id": 1,
    "conv_L_cache": 3,
    "conv_bias": False,
    "dtype": "bfloat16",
    "eos_token_id": 7,
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 7168,
    "layer_types": [CONV, CONV, FULL, CONV],
    "max_position_embeddings": 128000,
    "model_type": "lfm2_moe",
    "moe_intermediate_size": 1792,
    "norm_eps": 1e-05,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_dense_layers": 2,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "rope_theta": 1000000.0,
    "routed_scaling_factor": 1.0,
    "transformers_version": "4.57.0.dev0",
    "use_cache": True,
    "use_expert_bias": True,
    "vocab_size": 65536,
}
FAMILY = TinyFamily(
    config="Lfm2MoeConfig",
    model="Lfm2MoeForCausalLM",
    fields={
        "num_hidden_layers": 4,
        "layer_types": [CONV, FULL, CONV, CONV],
        "num_dense_layers": 1,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 28,
        "routed_scaling_factor": 1.5,
        "norm_eps": 1e-5,
    },
    lacks=("rms_norm_eps", "hidden_act"),
    cases={
        "lfm2-moe": {},
        "lfm2-moe-without-bias": {
            "use_expert_bias": False,
            "norm_topk_prob": False,
            "num_dense_layers": 0,
            "conv_bias": True,
            "layer_types": [FULL, CONV, CONV, FULL],
            "num_key_value_heads": 1,
        },
        "lfm2-moe-all-experts": {
            "num_experts": 3,
            "num_dense_layers": 2,
            "conv_L_cache": 4,
            "tie_word_embeddings": True,
        },
    },
    published=PUBLISHED,
)
