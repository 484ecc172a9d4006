"""Tiny checkpoints of Jais 2, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "architectures": ["Jais2ForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 150024,
    "head_dim": 128,
    "hidden_act": "relu2",
    "hidden_size": 3328,
    "initializer_range": 0.02,
    "intermediate_size": 26624,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 8192,
    "mlp_bias": True,
    "model_type": "jais2",
    "num_attention_heads": 26,
    "num_hidden_layers": 2,
    "num_key_value_heads": 26,
    "rope_scaling": None,
    "rope_theta": 500000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.57.0",
    "use_cache": True,
    "vocab_size": 150272,
}
FAMILY = TinyFamily(
    config="Jais2Config",
    model="Jais2ForCausalLM",
    lacks=("rms_norm_eps",),
    cases={
        "jais2": {},
        "jais2-without-biases": {
            "attention_bias": False,
            "mlp_bias": False,
            "head_dim": 80,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "intermediate_size": 77,
            **rope("linear", factor=4.0),
        },
    },
    published=PUBLISHED,
)
