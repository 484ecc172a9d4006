"""Tiny checkpoints of Granite, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "architectures": ["GraniteForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.1,
    "attention_multiplier": 0.015625,
    "bos_token_id": 0,
    "embedding_multiplier": 12.0,
    "eos_token_id": 0,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "logits_scaling": 8.0,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "granite",
    "num_attention_heads": 32,
    "num_hidden_layers": 2,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "residual_multiplier": 0.22,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 5000000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.47.0.dev0",
    "use_cache": True,
    "vocab_size": 49155,
}
FAMILY = TinyFamily(
    config="GraniteConfig",
    model="GraniteForCausalLM",
    fields={
        "embedding_multiplier": 6.0,
        "attention_multiplier": 0.125,
        "residual_multiplier": 0.3,
        "logits_scaling": 0.5,
    },
    cases={
        "granite": {},
        "granite-biases": {
            "attention_bias": True,
            "mlp_bias": True,
            "num_attention_heads": 6,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "intermediate_size": 77,
            "hidden_act": "gelu_pytorch_tanh",
            **rope("yarn", factor=4.0, original_max_position_embeddings=32),
        },
        "granite-unscaled": {
            "embedding_multiplier": 1,
            "attention_multiplier": 0.25,
            "residual_multiplier": 1,
            "logits_scaling": 1,
        },
    },
    served={"num_key_value_heads": 4},
    published=PUBLISHED,
)
