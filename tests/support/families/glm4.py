"""Tiny checkpoints of GLM-4-0414, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "architectures": ["Glm4ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "eos_token_id": [151329, 151336, 151338],
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 6144,
    "initializer_range": 0.02,
    "intermediate_size": 23040,
    "max_position_embeddings": 32768,
    "model_type": "glm4",
    "num_attention_heads": 48,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 151329,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.52.0.dev0",
    "use_cache": True,
    "vocab_size": 151552,
}
FAMILY = TinyFamily(
    config="Glm4Config",
    model="Glm4ForCausalLM",
    fields={"head_dim": 16},
    cases={
        "glm4": {},
        "glm4-odd-sizes": {
            "num_hidden_layers": 3,
            "head_dim": 96,
            "num_key_value_heads": 1,
            "intermediate_size": 77,
            "attention_bias": False,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
            },
        },
    },
    published=PUBLISHED,
)
