"""Tiny checkpoints of Gemma 3, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "cache_implementation": "hybrid",
    "eos_token_id": [1, 106],
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "initializer_range": 0.02,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 8,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.50.0.dev0",
    "use_cache": True,
    "vocab_size": 262144,
}
FAMILY = TinyFamily(
    config="Gemma3TextConfig",
    model="Gemma3ForCausalLM",
    fields={
        "num_hidden_layers": 3,
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "sliding_window": 9,
        "layer_types": [["sliding_attention", "full_attention"][i == 1] for i in range(3)],
    },
    # Embeddings are scaled and the head is tied: the model would say what it read again if nothing
    # else were large.
    spread=2.0,
    cases={
        "gemma3": {},
        "gemma3-linear-bias": {
            "attention_bias": True,
            "hidden_activation": "gelu",
            "intermediate_size": 120,
            "tie_word_embeddings": False,
            "final_logit_softcapping": 5.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 50000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            },
        },
        "gemma3-head-256": {
            "head_dim": 256,
            "num_key_value_heads": 1,
            "query_pre_attn_scalar": 4096,
            "num_hidden_layers": 4,
            "layer_types": None,
            "sliding_window_pattern": 2,
            "tie_word_embeddings": False,
        },
    },
    served={"final_logit_softcapping": 5.0},
    published=PUBLISHED,
)
