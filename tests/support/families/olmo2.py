"""Tiny checkpoints of OLMo 2, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "architectures": ["Olmo2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "eos_token_id": 100257,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "olmo2",
    "num_attention_heads": 32,
    "num_hidden_layers": 2,
    "num_key_value_heads": 32,
    "pad_token_id": 100277,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 500000,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "transformers_version": "4.47.0",
    "use_cache": True,
    "vocab_size": 100352,
}
FAMILY = TinyFamily(
    config="Olmo2Config",
    model="Olmo2ForCausalLM",
    cases={
        "olmo2": {},
        "olmo2-odd-sizes": {
            "num_attention_heads": 6,
            "num_key_value_heads": 1,
            "head_dim": 96,
            "intermediate_size": 77,
            "attention_bias": True,
            **rope("linear", factor=4.0),
        },
        "olmo2-tied": {
            "num_key_value_heads": 4,
            "num_hidden_layers": 4,
            "tie_word_embeddings": True,
        },
    },
    served={"num_key_value_heads": 4},
    published=PUBLISHED,
)
