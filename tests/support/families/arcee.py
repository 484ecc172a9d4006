"""Tiny checkpoints of Arcee's AFM, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "architectures": ["ArceeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "head_dim": 128,
    "hidden_act": "relu2",
    "hidden_size": 2560,
    "initializer_range": 0.02,
    "intermediate_size": 18432,
    "max_position_embeddings": 65536,
    "mlp_bias": False,
    "model_type": "arcee",
    "num_attention_heads": 20,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 20.0,
        "mscale": 1.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "type": "yarn",
    },
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.53.0",
    "use_cache": True,
    "vocab_size": 128004,
}
FAMILY = TinyFamily(
    config="ArceeConfig",
    model="ArceeForCausalLM",
    cases={
        "arcee": rope("yarn", factor=4.0, mscale=1.0, original_max_position_embeddings=32),
        "arcee-biases": {
            "attention_bias": True,
            "mlp_bias": True,
            "head_dim": 80,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "intermediate_size": 77,
        },
        "arcee-relu": {
            "hidden_act": "relu",
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "tie_word_embeddings": False,
        },
    },
    published=PUBLISHED,
)
