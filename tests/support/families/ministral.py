"""Tiny checkpoints of Ministral 8B, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "architectures": ["MinistralForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 12288,
    "layer_types": ["full_attention", *["sliding_attention"] * 3],
    "max_position_embeddings": 32768,
    "model_type": "ministral",
    "num_attention_heads": 32,
    "num_hidden_layers": 4,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 100000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.57.0",
    "use_cache": True,
    "vocab_size": 131072,
}
FAMILY = TinyFamily(
    config="MinistralConfig",
    model="MinistralForCausalLM",
    fields={"num_hidden_layers": 3, "head_dim": 16, "sliding_window": 9},
    cases={
        "ministral": {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
        "ministral-all": {
            "head_dim": 96,
            "num_key_value_heads": 1,
            "intermediate_size": 77,
            **rope("linear", factor=4.0),
        },
        "ministral-full": {"layer_types": ["full_attention"] * 3, "num_key_value_heads": 4},
    },
    published=PUBLISHED,
)
