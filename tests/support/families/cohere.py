"""Tiny checkpoints of Command R, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "architectures": ["CohereForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 5,
    "eos_token_id": 255001,
    "hidden_act": "silu",
    "hidden_size": 8192,
    "initializer_range": 0.02,
    "intermediate_size": 22528,
    "layer_norm_eps": 1e-05,
    "logit_scale": 0.0625,
    "max_position_embeddings": 8192,
    "model_max_length": 131072,
    "model_type": "cohere",
    "num_attention_heads": 64,
    "num_hidden_layers": 2,
    "num_key_value_heads": 64,
    "pad_token_id": 0,
    "pretraining_tp": 1,
    "rope_theta": 8000000.0,
    "torch_dtype": "float16",
    "transformers_version": "4.38.2",
    "use_cache": True,
    "vocab_size": 256000,
}
FAMILY = TinyFamily(
    config="CohereConfig",
    model="CohereForCausalLM",
    lacks=("rms_norm_eps",),
    fields={"logit_scale": 0.75, "tie_word_embeddings": False},
    cases={
        "cohere": {},
        "cohere-biases": {
            "attention_bias": True,
            "head_dim": 48,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "intermediate_size": 77,
            **rope("linear", factor=4.0),
        },
        "cohere-qk-norm": {"use_qk_norm": True, "head_dim": 80, "num_key_value_heads": 4},
        "cohere-qk-norm-shared": {
            "use_qk_norm": True,
            "attention_bias": True,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
        },
        "cohere-tied": {"tie_word_embeddings": True, "num_key_value_heads": 4, "logit_scale": 2.0},
    },
    published=PUBLISHED,
)
