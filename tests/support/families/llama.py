"""Tiny checkpoints of Llama, and what is compared with transformers."""

from __future__ import annotations

from support.families.family import TinyFamily, rope

FAMILY = TinyFamily(
    config="LlamaConfig",
    model="LlamaForCausalLM",
    cases={
        "llama-mha-tied": {"num_key_value_heads": 4, "tie_word_embeddings": True},
        "llama-gqa": {},
        "llama-mqa": {"num_key_value_heads": 1},
        "llama-biases": {"attention_bias": True, "mlp_bias": True},
        "llama-head-8": {"head_dim": 8, "num_attention_heads": 8},
        "llama-odd-sizes": {
            "hidden_size": 60,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "head_dim": 80,
            "intermediate_size": 77,
        },
        "llama-gelu": {"hidden_act": "gelu"},
        "llama-gelu-tanh": {"hidden_act": "gelu_pytorch_tanh"},
        "llama-theta": rope("default", rope_theta=500000.0),
        "llama-linear": rope("linear", factor=4.0),
        # The prompt ends before the original limit, and decoding passes it.
        "llama-dynamic": rope("dynamic", factor=2.0) | {"max_position_embeddings": 64},
        "llama-llama3": rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
        "llama-yarn": rope("yarn", factor=4.0, original_max_position_embeddings=32),
        "llama-yarn-mscale": rope(
            "yarn",
            factor=4.0,
            original_max_position_embeddings=32,
            mscale=0.7,
            mscale_all_dim=1.0,
            beta_fast=16.0,
            beta_slow=2.0,
            truncate=False,
        ),
    },
    served={"tie_word_embeddings": True},
)
