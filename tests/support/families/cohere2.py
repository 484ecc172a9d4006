"""Tiny checkpoints of Command R7B, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "architectures": ["Cohere2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 5,
    "cache_implementation": "hybrid",
    "eos_token_id": 255001,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 14336,
    "layer_norm_eps": 1e-05,
    "layer_switch": 4,
    "logit_scale": 0.25,
    "max_position_embeddings": 8192,
    "model_type": "cohere2",
    "num_attention_heads": 32,
    "num_hidden_layers": 4,
    "num_key_value_heads": 8,
    "order_of_interleaved_layers": "local_attn_first",
    "pad_token_id": 0,
    "position_embedding_type": "rope_gptj",
    "rope_scaling": None,
    "rope_theta": 50000,
    "rotary_pct": 1.0,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.48.0.dev0",
    "use_cache": True,
    "use_embedding_sharing": True,
    "use_gated_activation": True,
    "use_parallel_block": True,
    "use_parallel_embedding": False,
    "vocab_size": 256000,
}
FAMILY = TinyFamily(
    config="Cohere2Config",
    model="Cohere2ForCausalLM",
    lacks=("rms_norm_eps",),
    fields={
        "logit_scale": 0.75,
        "num_hidden_layers": 3,
        "sliding_window": 9,
        "tie_word_embeddings": False,
    },
    cases={
        "cohere2": {
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        "cohere2-pattern": {
            "sliding_window_pattern": 2,
            "attention_bias": True,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "intermediate_size": 77,
        },
        "cohere2-tied": {"tie_word_embeddings": True, "num_key_value_heads": 4},
    },
    published=PUBLISHED,
)
