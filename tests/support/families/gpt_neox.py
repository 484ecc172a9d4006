"""Tiny checkpoints of GPT-NeoX, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "architectures": ["GPTNeoXForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "gelu",
    "hidden_size": 512,
    "initializer_range": 0.02,
    "intermediate_size": 2048,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 8,
    "num_hidden_layers": 6,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.24.0",
    "use_cache": True,
    "use_parallel_residual": True,
    "vocab_size": 50304,
}
FAMILY = TinyFamily(
    config="GPTNeoXConfig",
    model="GPTNeoXForCausalLM",
    lacks=("num_key_value_heads", "rms_norm_eps"),
    cases={
        "gpt-neox": {},
        "gpt-neox-sequential": {
            "use_parallel_residual": False,
            "attention_bias": False,
            "hidden_act": "gelu_new",
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 500.0,
                "partial_rotary_factor": 0.5,
            },
        },
    },
    published=PUBLISHED,
)
