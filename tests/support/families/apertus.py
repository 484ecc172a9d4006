"""Tiny checkpoints of Apertus, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

LLAMA3: dict[str, Any] = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
    "type": "llama3",
}
PUBLISHED: dict[str, Any] = {
    "architectures": ["ApertusForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 68,
    "hidden_act": "xielu",
    "hidden_dropout": 0.0,
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 21504,
    "max_position_embeddings": 65536,
    "mlp_bias": False,
    "model_type": "apertus",
    "num_attention_heads": 32,
    "num_hidden_layers": 2,
    "num_key_value_heads": 8,
    "pad_token_id": 3,
    "post_norm": False,
    "qk_norm": True,
    "rms_norm_eps": 1e-05,
    "rope_scaling": LLAMA3,
    "rope_theta": 12000000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.56.0.dev0",
    "use_cache": True,
    "vocab_size": 131072,
}
FAMILY = TinyFamily(
    config="ApertusConfig",
    model="ApertusForCausalLM",
    cases={
        "apertus": {},
        "apertus-biases": {
            "attention_bias": True,
            "num_attention_heads": 6,
            "num_key_value_heads": 1,
            "head_dim": 80,
            "intermediate_size": 77,
            **rope("yarn", factor=4.0, original_max_position_embeddings=32),
        },
        "apertus-gelu": {"hidden_act": "gelu", "num_key_value_heads": 4, "head_dim": 48},
    },
    published=PUBLISHED,
)
