"""Tiny checkpoints of OLMo 1, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "architectures": ["OlmoForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "clip_qkv": 8.0,
    "eos_token_id": 50279,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "olmo",
    "num_attention_heads": 32,
    "num_hidden_layers": 2,
    "num_key_value_heads": 32,
    "pad_token_id": 1,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.2",
    "use_cache": True,
    "vocab_size": 50304,
}
FAMILY = TinyFamily(
    config="OlmoConfig",
    model="OlmoForCausalLM",
    lacks=("rms_norm_eps",),
    cases={
        "olmo": {"clip_qkv": 0.75},
        "olmo-biases": {
            "attention_bias": True,
            "clip_qkv": 2.0,
            "num_attention_heads": 6,
            "num_key_value_heads": 1,
            "head_dim": 48,
            "intermediate_size": 77,
            **rope("linear", factor=4.0),
        },
        "olmo-unclipped": {"num_key_value_heads": 4, "num_hidden_layers": 3},
    },
    published=PUBLISHED,
)
