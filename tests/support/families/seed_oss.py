"""Tiny checkpoints of Seed-OSS, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "architectures": ["SeedOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.1,
    "attention_out_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "initializer_range": 0.02,
    "intermediate_size": 27648,
    "max_position_embeddings": 524288,
    "mlp_bias": False,
    "model_type": "seed_oss",
    "num_attention_heads": 80,
    "num_hidden_layers": 2,
    "num_key_value_heads": 8,
    "pad_token_id": 1,
    "pretraining_tp": 1,
    "residual_dropout": 0.1,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"rope_type": "default"},
    "rope_theta": 10000000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.55.0",
    "use_cache": True,
    "vocab_size": 155136,
}
FAMILY = TinyFamily(
    config="SeedOssConfig",
    model="SeedOssForCausalLM",
    fields={"head_dim": 16},
    cases={
        "seed-oss": {"num_key_value_heads": 1},
        "seed-oss-output-bias": {
            "attention_bias": False,
            "attention_out_bias": True,
            "mlp_bias": True,
            "head_dim": 96,
            "intermediate_size": 77,
            **rope("yarn", factor=4.0, original_max_position_embeddings=32),
        },
        "seed-oss-narrow": {"head_dim": None, "num_key_value_heads": None},
    },
    published=PUBLISHED,
)
