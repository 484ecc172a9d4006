"""Tiny checkpoints of Youtu-LLM, and what is compared with transformers."""

from __future__ import annotations

from support.families.family import TinyFamily, rope

FAMILY = TinyFamily(
    config="YoutuConfig",
    model="YoutuForCausalLM",
    fields={
        "pad_token_id": None,  # whose row transformers makes zeros of, where embeddings are tied
        "num_key_value_heads": 4,
        "q_lora_rank": 28,
        "kv_lora_rank": 40,
        "qk_nope_head_dim": 24,
        "qk_rope_head_dim": 8,
        "v_head_dim": 20,
    },
    cases={
        "youtu": {},
        "youtu-halves": {
            "rope_interleave": False,
            "q_lora_rank": None,
            "attention_bias": True,
            "tie_word_embeddings": False,
            **rope("linear", factor=2.0),
        },
    },
)
