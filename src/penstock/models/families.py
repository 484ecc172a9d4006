"""All families of models."""

from __future__ import annotations

from typing import Final

from penstock.models import (
<<<<<<< HEAD
    deepseek_v2,
    deepseek_v3,
=======
    ernie4_5_moe,
>>>>>>> m1
    gemma,
    gemma2,
    gemma3,
    glm4_moe,
    gpt_neox,
    gpt_oss,
    granite,
    granitemoe,
    llama,
    minimax_m2,
    mistral,
    mixtral,
    olmo2,
    olmo3,
    olmoe,
    phi3,
    phimoe,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    smollm3,
    starcoder2,
)

MODULES: Final = (
<<<<<<< HEAD
    deepseek_v2,
    deepseek_v3,
=======
    ernie4_5_moe,
>>>>>>> m1
    gemma,
    gemma2,
    gemma3,
    glm4_moe,
    gpt_neox,
    gpt_oss,
    granite,
    granitemoe,
    llama,
    minimax_m2,
    mistral,
    mixtral,
    olmo2,
    olmo3,
    olmoe,
    phi3,
    phimoe,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    smollm3,
    starcoder2,
)
