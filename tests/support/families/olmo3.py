"""Tiny checkpoints of OLMo 3, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "architectures": ["Olmo3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "dtype": "bfloat16",
    "eos_token_id": 100257,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    "max_position_embeddings": 65536,
    "model_type": "olmo3",
    "num_attention_heads": 32,
    "num_hidden_layers": 4,
    "num_key_value_heads": 32,
    "pad_token_id": 100277,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "attention_factor": 1.2079441541679836,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "yarn",
    },
    "rope_theta": 500000,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "transformers_version": "4.57.0",
    "use_cache": True,
    "vocab_size": 100278,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 20000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
}
FAMILY = TinyFamily(
    config="Olmo3Config",
    model="Olmo3ForCausalLM",
    fields={"num_hidden_layers": 3, "sliding_window": 9},
    cases={
        "olmo3": {
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            },
        },
        "olmo3-pattern": {
            "num_hidden_layers": 4,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "hidden_size": 60,
            "head_dim": 80,
            "attention_bias": True,
        },
    },
    published=PUBLISHED,
)
