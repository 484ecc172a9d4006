"""Mistral: Llama without biases, in early versions with a sliding window on every layer."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import default_head_dim, read_decoder, uniform_windows
from penstock.models.llama import NAMES as NAMES
from penstock.models.reader import ConfigReader
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "MistralForCausalLM"
MODEL_TYPE = "mistral"
KNOWN_AS = "Mistral 7B, Nemo, Small 3 and its language model in 3.1 and 3.2"
TEXT_PARTS: Final = {
    MODEL_TYPE: {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "sliding_window": 4096,
    }
}


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    for name in ("attention_bias", "mlp_bias"):
        config.only(name, False, "must be false: Mistral has no biases")
    if not config.contains("sliding_window"):
        # Absent, transformers assumes 4096; null, no window. Too different to guess.
        raise config.error("sliding_window", "is required: a number of tokens, or null for none")
    return read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=default_head_dim(config),
        num_kv_heads=config.integer("num_key_value_heads"),
        windows=uniform_windows(config, config.optional_integer("sliding_window")),
    )
