"""Qwen2 and Qwen2.5: Llama with biases on query, key and value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.models.blocks import default_head_dim, qwen_windows, read_decoder
from penstock.models.llama import NAMES as NAMES
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "Qwen2ForCausalLM"
MODEL_TYPE = "qwen2"
KNOWN_AS = "Qwen2, Qwen2.5, QwQ, the language models of Qwen2-VL and Qwen2.5-VL"
TEXT_PARTS: Final[Mapping[str, Mapping[str, object]]] = {
    name: {} for name in ("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text")
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config.only("attention_bias", True, "must be true: Qwen2 has query, key and value biases")
    config.only("mlp_bias", False, "must be false: Qwen2 has no MLP biases")
    config.only("use_mrope", False, "must be false: multimodal rotary sections are not supported")
    return read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=config.integer("num_key_value_heads"),
        windows=qwen_windows(config),
        qkv_bias=True,
    )
