"""Tiny checkpoints of Llama 4's language model, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily, rope

PUBLISHED: dict[str, Any] = {
    "architectures": ["Llama4ForCausalLM"],
    "attention_bias": False,
    "attention_chunk_size": 8192,
    "attention_dropout": 0.0,
    "attn_scale": 0.1,
    "attn_temperature_tuning": 4,
    "bos_token_id": 200000,
    "cache_implementation": "hybrid",
    "eos_token_id": [200001, 200007, 200008],
    "floor_scale": 8192,
    "for_llm_compressor": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "initializer_range": 0.02,
    "interleave_moe_layer_step": 1,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "max_position_embeddings": 10485760,
    "model_type": "llama4_text",
    "no_rope_layers": [],
    "num_attention_heads": 40,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "output_router_logits": False,
    "pad_token_id": 200018,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 16.0,
        "high_freq_factor": 1.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "router_aux_loss_coef": 0.001,
    "router_jitter_noise": 0.0,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_qk_norm": True,
    "vocab_size": 202048,
}
FAMILY = TinyFamily(
    config="Llama4TextConfig",
    model="Llama4ForCausalLM",
    fields={
        "head_dim": 16,
        "num_local_experts": 5,
        "intermediate_size": 28,
        "intermediate_size_mlp": 44,
        "attention_chunk_size": 16,
        "floor_scale": 8,
        "attn_scale": 0.4,
    },
    cases={
        "llama4": {
            "num_hidden_layers": 4,
            "interleave_moe_layer_step": 2,
            "no_rope_layer_interval": 2,
        },
        "llama4-experts": {
            "num_experts_per_tok": 3,
            "attention_bias": True,
            "use_qk_norm": False,
            "num_key_value_heads": 1,
            "no_rope_layers": [1, 0],
            "attn_temperature_tuning": False,
            "attention_chunk_size": 7,
        },
        "llama4-kinds": {
            "num_hidden_layers": 3,
            "moe_layers": [1],
            "layer_types": ["full_attention", "chunked_attention", "chunked_attention"],
            "no_rope_layers": [1, 0, 1],
            "num_local_experts": 1,
            "tie_word_embeddings": True,
            "num_key_value_heads": 4,
            **rope(
                "llama3",
                factor=4.0,
                low_freq_factor=1.0,
                high_freq_factor=1.0,
                original_max_position_embeddings=32,
            ),
        },
    },
    published=PUBLISHED,
)
