"""Tiny checkpoints of ERNIE 4.5, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "architectures": ["Ernie4_5_ForCausalLM"],
    "attention_dropout": 0.0,
    "auto_map": {
        "AutoConfig": "configuration_ernie4_5.Ernie4_5_Config",
        "AutoModel": "modeling_ernie4_5.Ernie4_5_Model",
        "AutoModelForCausalLM": "modeling_ernie4_5.Ernie4_5_ForCausalLM",
    },
    "bos_token_id": 1,
    "compression_ratio": 1.0,
    "eos_token_id": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 131072,
    "model_type": "ernie4_5",
    "num_attention_heads": 16,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.52.4",
    "use_bias": False,
    "use_cache": True,
    "use_flash_attention": False,
    "vocab_size": 103424,
    "weight_share_add_bias": True,
}
FAMILY = TinyFamily(
    config="Ernie4_5Config",
    model="Ernie4_5ForCausalLM",
    fields={"head_dim": 16, "tie_word_embeddings": False},
    cases={
        "ernie": {},
        "ernie-biases": {
            "use_bias": True,
            "head_dim": 48,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "intermediate_size": 77,
            **rope("linear", factor=4.0),
        },
        "ernie-tied": {"head_dim": 96, "num_hidden_layers": 3, "tie_word_embeddings": True},
    },
    published=PUBLISHED,
)
