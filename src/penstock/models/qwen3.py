"""Qwen3 (dense): Llama with RMS norms on each head's query and key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.models.blocks import qwen_windows, read_decoder
from penstock.models.limits import MAX_HEAD_DIM
from penstock.models.llama import NAMES as NAMES
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "Qwen3ForCausalLM"
MODEL_TYPE = "qwen3"
KNOWN_AS = "Qwen3, dense, the language models of Qwen3-VL"
TEXT_PARTS: Final[Mapping[str, Mapping[str, object]]] = {"qwen3_vl_text": {}}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    bias = config.boolean("attention_bias", False)
    config.only("mlp_bias", False, "must be false: Qwen3 has no MLP biases")
    return read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        # Not hidden_size / heads: Qwen3's heads are wider than that, so it must be said.
        head_dim=config.integer("head_dim", high=MAX_HEAD_DIM),
        num_kv_heads=config.integer("num_key_value_heads"),
        windows=qwen_windows(config),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
    )
