"""Tiny checkpoints of Code World Model, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

LLAMA3: dict[str, Any] = {
    "factor": 16.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
PUBLISHED: dict[str, Any] = {
    "architectures": ["CwmForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 6144,
    "initializer_range": 0.02,
    "intermediate_size": 21504,
    "layer_types": ["full_attention", *["sliding_attention"] * 3],
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "cwm",
    "num_attention_heads": 48,
    "num_hidden_layers": 4,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": LLAMA3,
    "rope_theta": 1000000.0,
    "sliding_window": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.57.0",
    "use_cache": True,
    "vocab_size": 128256,
}
FAMILY = TinyFamily(
    config="CwmConfig",
    model="CwmForCausalLM",
    fields={
        "num_hidden_layers": 3,
        "head_dim": 16,
        "sliding_window": 9,
        "rope_parameters": {
            **LLAMA3,
            "original_max_position_embeddings": 32,
            "rope_theta": 10000.0,
        },
    },
    cases={
        "cwm": {},
        "cwm-some": {
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "head_dim": 80,
            "mlp_bias": True,
            "num_key_value_heads": 1,
            "intermediate_size": 77,
            **rope("default", rope_theta=500.0),
        },
    },
    published=PUBLISHED,
)
