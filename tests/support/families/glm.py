"""Tiny checkpoints of GLM-4, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "architectures": ["GlmForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": [151329, 151336, 151338],
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 13696,
    "max_position_embeddings": 131072,
    "model_type": "glm",
    "num_attention_heads": 32,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 151329,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1.5625e-07,
    "rope_theta": 5000000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.46.0.dev0",
    "use_cache": True,
    "vocab_size": 151552,
}
FAMILY = TinyFamily(
    config="GlmConfig",
    model="GlmForCausalLM",
    fields={"head_dim": 16},
    cases={
        "glm": {},
        "glm-odd-sizes": {
            "head_dim": 48,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "intermediate_size": 77,
            "attention_bias": False,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 500.0,
                "partial_rotary_factor": 0.75,
            },
        },
        "glm-linear-tied": {
            "tie_word_embeddings": True,
            "num_key_value_heads": 4,
            "head_dim": 80,
            "rope_parameters": {
                "rope_type": "linear",
                "factor": 4.0,
                "rope_theta": 10000.0,
                "partial_rotary_factor": 1.0,
            },
        },
    },
    published=PUBLISHED,
)
