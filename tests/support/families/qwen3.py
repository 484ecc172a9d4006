"""Tiny checkpoints of Qwen3, and what is compared with transformers."""

from __future__ import annotations

from support.families.family import TinyFamily

FAMILY = TinyFamily(
    config="Qwen3Config",
    model="Qwen3ForCausalLM",
    fields={"head_dim": 16},
    cases={
        "qwen3": {"num_key_value_heads": 1},
        "qwen3-tied": {"head_dim": 128, "tie_word_embeddings": True},
        "qwen3-bias-window": {
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 33,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    },
)
