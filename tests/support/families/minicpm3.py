"""Tiny checkpoints of MiniCPM3, and what is compared with transformers."""

from __future__ import annotations

from support.families.family import TinyFamily, rope

FAMILY = TinyFamily(
    config="MiniCPM3Config",
    model="MiniCPM3ForCausalLM",
    fields={
        "pad_token_id": None,  # whose row transformers makes zeros of, where embeddings are tied
        "num_key_value_heads": 4,
        "q_lora_rank": 28,
        "kv_lora_rank": 40,
        "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 8,
        "dim_model_base": 80,
        "scale_emb": 3,
    },
    cases={
        "minicpm3": {},
        "minicpm3-longrope": {
            "max_position_embeddings": 64,
            **rope(
                "longrope",
                short_factor=[1.0, 1.1, 1.2, 1.5],
                long_factor=[1.0, 2.0, 3.5, 5.0],
                original_max_position_embeddings=256,
            ),
        },
        "minicpm3-untied": {
            "tie_word_embeddings": False,
            "q_lora_rank": None,
            "v_head_dim": 20,
            "attention_bias": True,
            "mlp_bias": True,
            "scale_depth": 0.9,
            "scale_emb": 1,
            **rope("linear", factor=2.0),
        },
    },
)
