"""Tiny checkpoints of Ministral 3, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "architectures": ["Ministral3ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "max_position_embeddings": 262144,
    "model_type": "ministral3",
    "num_attention_heads": 32,
    "num_hidden_layers": 2,
    "num_key_value_heads": 8,
    "pad_token_id": 11,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 16.0,
        "llama_4_scaling_beta": 0.1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 16384,
        "rope_theta": 1000000.0,
        "rope_type": "yarn",
        "type": "yarn",
    },
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "5.0.0.dev0",
    "use_cache": True,
    "vocab_size": 131072,
}
FAMILY = TinyFamily(
    config="Ministral3Config",
    model="Ministral3ForCausalLM",
    fields={
        "head_dim": 16,
        **rope(
            "yarn",
            factor=16.0,
            original_max_position_embeddings=16,
            mscale=1.0,
            mscale_all_dim=1.0,
            llama_4_scaling_beta=0.5,
        ),
    },
    cases={
        "ministral3": {},
        "ministral3-window": {
            "sliding_window": 9,
            "head_dim": 80,
            "num_key_value_heads": 1,
            "intermediate_size": 77,
        },
        "ministral3-truncated": {
            "num_key_value_heads": 4,
            **rope(
                "yarn",
                factor=4.0,
                original_max_position_embeddings=37,
                llama_4_scaling_beta=0.1,
                beta_fast=16.0,
                beta_slow=2.0,
            ),
        },
    },
    published=PUBLISHED,
)
