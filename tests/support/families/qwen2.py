"""Tiny checkpoints of Qwen2, and what is compared with transformers."""

from __future__ import annotations

from support.families.family import TinyFamily

FAMILY = TinyFamily(
    config="Qwen2Config",
    model="Qwen2ForCausalLM",
    cases={
        "qwen2-mha-tied": {"num_key_value_heads": 4, "tie_word_embeddings": True},
        "qwen2-window": {
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 1,
        },
    },
)
