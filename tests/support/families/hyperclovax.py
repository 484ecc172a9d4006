"""Tiny checkpoints of HyperCLOVA X SEED, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "architectures": ["HyperCLOVAXForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attention_multiplier": 0.0078125,
    "bos_token_id": 100257,
    "embedding_multiplier": 10.0,
    "eos_token_id": 100257,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 6144,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "logits_scaling": 0.125,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "hyperclovax",
    "num_attention_heads": 48,
    "num_hidden_layers": 2,
    "num_key_value_heads": 8,
    "pad_token_id": 100257,
    "residual_multiplier": 1.0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 100000000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.52.4",
    "use_cache": True,
    "use_post_norm": True,
    "vocab_size": 110592,
}
FAMILY = TinyFamily(
    config="HyperCLOVAXConfig",
    model="HyperCLOVAXForCausalLM",
    fields={"embedding_multiplier": 6.0, "residual_multiplier": 0.5, "logits_scaling": 2.0},
    cases={
        "hyperclovax": {},
        "hyperclovax-without-norms": {
            "use_post_norm": False,
            "attention_multiplier": 0.1,
            "head_dim": 48,
            "num_key_value_heads": 1,
            "intermediate_size": 77,
            "mlp_bias": True,
            **rope("yarn", factor=4.0, original_max_position_embeddings=32),
        },
    },
    published=PUBLISHED,
)
