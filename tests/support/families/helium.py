"""Tiny checkpoints of Helium, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "architectures": ["HeliumForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "initializer_range": 0.02,
    "intermediate_size": 7040,
    "max_position_embeddings": 4096,
    "mlp_bias": False,
    "model_type": "helium",
    "num_attention_heads": 20,
    "num_hidden_layers": 2,
    "num_key_value_heads": 20,
    "pad_token_id": 3,
    "rms_norm_eps": 1e-08,
    "rope_theta": 100000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.47.0.dev0",
    "use_cache": True,
    "vocab_size": 48000,
}
FAMILY = TinyFamily(
    config="HeliumConfig",
    model="HeliumForCausalLM",
    fields={"head_dim": 16},
    cases={
        "helium": {},
        "helium-biases": {
            "attention_bias": True,
            "mlp_bias": True,
            "hidden_size": 144,
            "head_dim": 48,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "hidden_act": "gelu_pytorch_tanh",
            **rope("linear", factor=2.0),
        },
    },
    published=PUBLISHED,
)
