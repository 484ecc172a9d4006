"""All families of models."""

from __future__ import annotations

from typing import Final

from penstock.models import (
    gemma,
    gemma2,
    gemma3,
    gpt_neox,
    granite,
    llama,
    mistral,
    olmo2,
    olmo3,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
    smollm3,
    starcoder2,
)

MODULES: Final = (
    gemma,
    gemma2,
    gemma3,
    gpt_neox,
    granite,
    llama,
    mistral,
    olmo2,
    olmo3,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
    smollm3,
    starcoder2,
)
