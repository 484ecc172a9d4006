"""Tiny checkpoints of Mistral, and what is compared with transformers."""

from __future__ import annotations

from support.families.family import TinyFamily

FAMILY = TinyFamily(
    config="MistralConfig",
    model="MistralForCausalLM",
    fields={"sliding_window": None},
    cases={
        "mistral": {"head_dim": 128},
        "mistral-window": {"sliding_window": 16},
    },
    served={"sliding_window": 16},
)
