"""Tiny checkpoints of Gemma, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "architectures": ["GemmaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "head_dim": 256,
    "hidden_act": "gelu",
    "hidden_activation": None,
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 16384,
    "max_position_embeddings": 8192,
    "model_type": "gemma",
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.38.0.dev0",
    "use_cache": True,
    "vocab_size": 256000,
}
FAMILY = TinyFamily(
    config="GemmaConfig",
    model="GemmaForCausalLM",
    fields={"head_dim": 48, "num_key_value_heads": 1},
    # Embeddings are scaled and the head is tied: the model would say what it read again if nothing
    # else were large.
    spread=2.0,
    cases={
        "gemma": {},
        "gemma-bias-untied": {
            "attention_bias": True,
            "hidden_act": "silu",
            "head_dim": 256,
            "num_key_value_heads": 4,
            "tie_word_embeddings": False,
            **rope("linear", factor=4.0),
        },
    },
    served={"num_attention_heads": 3, "num_key_value_heads": 3},
    published=PUBLISHED,
)
