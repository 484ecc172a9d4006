"""Tiny checkpoints of DeepSeek-V2, and what is compared with transformers."""

from __future__ import annotations

from support.families.family import TinyFamily

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
    "mscale": 0.707,
    "mscale_all_dim": 0.9,
    "original_max_position_embeddings": 32,
}
FAMILY = TinyFamily(
    config="DeepseekV2Config",
    model="DeepseekV2ForCausalLM",
    fields={
        "num_key_value_heads": 4,
        "q_lora_rank": None,
        "kv_lora_rank": 40,
        "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 8,
        "v_head_dim": 20,
        "first_k_dense_replace": 2,
    },
    cases={
        "deepseek-v2": {},
        "deepseek-v2-yarn": {
            "q_lora_rank": 28,
            "rope_parameters": YARN,
            "attention_bias": True,
            "mlp_bias": True,
            "rms_norm_eps": 1e-3,
        },
        "deepseek-v2-odd": {
            "num_attention_heads": 1,
            "num_key_value_heads": 1,
            "q_lora_rank": 7,
            "kv_lora_rank": 34,
            "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 2,
            "v_head_dim": 3,
        },
    },
)
