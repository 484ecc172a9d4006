"""All families of models."""

from __future__ import annotations

from typing import Final

from penstock.models import (
    bloom,
    falcon,
    gemma,
    gemma2,
    gemma3,
    gpt2,
    gpt_bigcode,
    gpt_neox,
    granite,
    llama,
    mistral,
    mpt,
    olmo2,
    olmo3,
    opt,
    phi,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
    smollm3,
    starcoder2,
)

MODULES: Final = (
    bloom,
    falcon,
    gemma,
    gemma2,
    gemma3,
    gpt2,
    gpt_bigcode,
    gpt_neox,
    granite,
    llama,
    mistral,
    mpt,
    olmo2,
    olmo3,
    opt,
    phi,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
    smollm3,
    starcoder2,
)
