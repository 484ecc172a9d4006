"""Tiny checkpoints of DeepSeek-V3, and what is compared with transformers."""

from __future__ import annotations

from support.families.deepseek_v2 import YARN
from support.families.family import TinyFamily

FAMILY = TinyFamily(
    config="DeepseekV3Config",
    model="DeepseekV3ForCausalLM",
    fields={
        "num_key_value_heads": 4,
        "q_lora_rank": 28,
        "kv_lora_rank": 40,
        "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 8,
        "v_head_dim": 20,
        "first_k_dense_replace": 2,
    },
    cases={
        "deepseek-v3": {},
        "deepseek-v3-halves": {
            "rope_interleave": False,
            "q_lora_rank": None,
            "attention_bias": True,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
        "deepseek-v3-odd": {
            "num_attention_heads": 3,
            "num_key_value_heads": 3,
            "q_lora_rank": 7,
            "kv_lora_rank": 33,
            "qk_nope_head_dim": 5,
            "qk_rope_head_dim": 2,
            "v_head_dim": 3,
        },
        "deepseek-v3-wide": {
            "hidden_size": 80,
            "num_attention_heads": 5,
            "num_key_value_heads": 5,
            "kv_lora_rank": 96,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 32,
            "v_head_dim": 48,
        },
    },
)
