"""Tiny checkpoints of SmolLM3, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "architectures": ["SmolLM3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": 128012,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "layer_types": ["full_attention"] * 4,
    "max_position_embeddings": 65536,
    "max_window_layers": 28,
    "mlp_bias": False,
    "model_type": "smollm3",
    "no_rope_layer_interval": 4,
    "no_rope_layers": [1, 1, 1, 0],
    "num_attention_heads": 16,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "pad_token_id": 128004,
    "pretraining_tp": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 5000000.0,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.54.0.dev0",
    "use_cache": False,
    "use_sliding_window": False,
    "vocab_size": 128256,
}
FAMILY = TinyFamily(
    config="SmolLM3Config",
    model="SmolLM3ForCausalLM",
    cases={
        "smollm3": {"no_rope_layers": [0, 1], "tie_word_embeddings": False},
        "smollm3-windows": {
            "num_hidden_layers": 5,
            "no_rope_layer_interval": 2,
            "use_sliding_window": True,
            "sliding_window": 7,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": False,
        },
        "smollm3-yarn": {
            "no_rope_layers": [1, 0, 1],
            "head_dim": 96,
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
            **rope("yarn", factor=4.0, original_max_position_embeddings=32),
        },
    },
    served={"no_rope_layers": [0, 1]},
    published=PUBLISHED,
)
