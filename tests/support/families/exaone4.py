"""Tiny checkpoints of EXAONE 4, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "architectures": ["Exaone4ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 361,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "initializer_range": 0.02,
    "intermediate_size": 27392,
    "layer_types": [
        "sliding_attention",
        "sliding_attention",
        "sliding_attention",
        "full_attention",
    ],
    "max_position_embeddings": 131072,
    "model_type": "exaone4",
    "num_attention_heads": 40,
    "num_hidden_layers": 4,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 16.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 1000000,
    "sliding_window": 4096,
    "sliding_window_pattern": "LLLG",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.54.0.dev0",
    "use_cache": True,
    "vocab_size": 102400,
}
FAMILY = TinyFamily(
    config="Exaone4Config",
    model="Exaone4ForCausalLM",
    fields={"sliding_window": 9, "num_hidden_layers": 3, "sliding_window_pattern": 2},
    cases={
        "exaone4": {},
        "exaone4-full": {
            "sliding_window": None,
            "layer_types": ["full_attention"] * 3,
            "head_dim": 80,
            "num_key_value_heads": 1,
            "intermediate_size": 77,
            **rope(
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
        },
        "exaone4-some": {
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "sliding_window_pattern": "LLLG",
            "num_key_value_heads": 4,
        },
    },
    published=PUBLISHED,
)
