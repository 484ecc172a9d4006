"""Tiny checkpoints of LFM2, and what is compared with transformers."""

from __future__ import annotations

from typing import Any

from support.families.family import TinyFamily

PUBLISHED: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"],
    "block_auto_adjust_ff_dim": True,
    "block_dim": 2048,
    "block_ff_dim": 12288,
    "block_ffn_dim_multiplier": 1.0,
    "block_mlp_init_scale": 1.0,
    "block_multiple_of": 256,
    "block_norm_eps": 1e-05,
    "block_out_init_scale": 1.0,
    "block_use_swiglu": True,
    "block_use_xavier_init": True,
    "bos_token_id": 1,
    "conv_L_cache": 3,
    "conv_bias": False,
    "conv_dim": 2048,
    "conv_dim_out": 2048,
    "conv_use_xavier_init": True,
    "eos_token_id": 7,
    "full_attn_idxs": [2, 5],
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "max_position_embeddings": 128000,
    "model_type": "lfm2",
    "norm_eps": 1e-05,
    "num_attention_heads": 32,
    "num_heads": 32,
    "num_hidden_layers": 7,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.54.0.dev0",
    "use_cache": True,
    "use_pos_enc": True,
    "vocab_size": 65536,
}
CONV, FULL = "conv", "full_attention"
FAMILY = TinyFamily(
    config="Lfm2Config",
    model="Lfm2ForCausalLM",
    fields={
        "num_hidden_layers": 4,
        "layer_types": [CONV, FULL, CONV, CONV],
        "block_multiple_of": 8,
        "norm_eps": 1e-5,
    },
    lacks=("rms_norm_eps", "hidden_act"),
    cases={
        "lfm2": {},
        "lfm2-biases": {
            "conv_bias": True,
            "conv_L_cache": 5,
            "layer_types": [FULL, CONV, CONV, FULL],
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "block_ffn_dim_multiplier": 1.3,
        },
        "lfm2-whole-width": {
            "num_hidden_layers": 2,
            "layer_types": [CONV, FULL],
            "conv_L_cache": 2,
            "block_auto_adjust_ff_dim": False,
            "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
        },
        "lfm2-attention-last": {
            "num_hidden_layers": 3,
            "layer_types": [CONV, CONV, FULL],
            "conv_L_cache": 4,
            "block_ffn_dim_multiplier": 0.7,
        },
    },
    published=PUBLISHED,
)
