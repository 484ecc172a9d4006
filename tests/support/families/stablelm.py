"""Tiny checkpoints of StableLM, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "architectures": ["StableLmForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 100257,
    "eos_token_id": 100257,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 5632,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 4096,
    "model_type": "stablelm",
    "num_attention_heads": 32,
    "num_hidden_layers": 2,
    "num_key_value_heads": 32,
    "partial_rotary_factor": 0.25,
    "rope_theta": 10000,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.38.0",
    "use_cache": True,
    "use_qkv_bias": True,
    "vocab_size": 100352,
}
FAMILY = TinyFamily(
    config="StableLmConfig",
    model="StableLmForCausalLM",
    lacks=("rms_norm_eps",),
    cases={
        "stablelm": {"use_qkv_bias": True},
        "stablelm-parallel": {
            "use_parallel_residual": True,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "intermediate_size": 77,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 500.0,
                "partial_rotary_factor": 0.75,
            },
        },
        "stablelm-qk-norm": {"qk_layernorm": True, "use_parallel_residual": True},
        "stablelm-qk-norm-all": {
            "qk_layernorm": True,
            "use_qkv_bias": True,
            "hidden_size": 96,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
        },
    },
    published=PUBLISHED,
)
