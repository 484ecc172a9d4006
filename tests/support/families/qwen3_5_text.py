"""Tiny checkpoints of Qwen3.5's language models, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

TURNS: dict[str, Any] = {
    "mrope_interleaved": True,
    "mrope_section": [1, 1, 0],
    "partial_rotary_factor": 0.25,
    "rope_theta": 10000000,
    "rope_type": "default",
}
PUBLISHED: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_output_gate": True,
    "dtype": "bfloat16",
    "eos_token_id": 248044,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 12288,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "model_type": "qwen3_5_text",
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "num_attention_heads": 16,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_parameters": TURNS | {"mrope_section": [11, 11, 10]},
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 248320,
}
NETS: dict[str, Any] = {
    "head_dim": 16,
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "rope_parameters": TURNS,
}
FAMILY = TinyFamily(
    config="Qwen3_5TextConfig",
    model="Qwen3_5ForCausalLM",
    fields=NETS,
    cases={
        "qwen3_5": {},
        "qwen3_5-nets-last": {
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 6,
            "linear_key_head_dim": 32,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    },
    # transformers starts with states that forget all at once.
    factors={"A_log": -1.0},
    published=PUBLISHED,
)
