"""Tiny checkpoints of Nemotron, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "architectures": ["NemotronForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "head_dim": 128,
    "hidden_act": "relu2",
    "hidden_size": 3072,
    "initializer_range": 0.0134,
    "intermediate_size": 9216,
    "max_position_embeddings": 4096,
    "mlp_bias": False,
    "model_type": "nemotron",
    "norm_eps": 1e-05,
    "num_attention_heads": 24,
    "num_hidden_layers": 2,
    "num_key_value_heads": 8,
    "partial_rotary_factor": 0.5,
    "rope_theta": 10000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.44.0",
    "use_cache": True,
    "vocab_size": 256000,
}
FAMILY = TinyFamily(
    config="NemotronConfig",
    model="NemotronForCausalLM",
    lacks=("rms_norm_eps",),
    cases={
        "nemotron": {},
        "nemotron-biases": {
            "attention_bias": True,
            "mlp_bias": True,
            "head_dim": 48,
            "num_attention_heads": 6,
            "num_key_value_heads": 1,
            "intermediate_size": 77,
            "norm_eps": 1e-3,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 500.0,
                "partial_rotary_factor": 0.75,
            },
        },
    },
    published=PUBLISHED,
)
