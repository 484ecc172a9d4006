"""Small models of each kind of cache, with their options."""

from __future__ import annotations

from typing import Any

from penstock.speculative_config import Ngram
from support.convolved import CONFIG as CONVOLVED
from support.families import edited
from support.handed import LLAMA
from support.latents import CONFIG as LATENTS

WINDOWS: dict[str, Any] = edited(
    "gemma3",
    vocab_size=300,
    hidden_size=120,
    intermediate_size=104,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=24,
    max_position_embeddings=2048,
    sliding_window=40,
    sliding_window_pattern=2,
)
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bfloat16": (LLAMA, {}),
    "float32": (LLAMA, {"dtype": "float32"}),
    "int8": (LLAMA, {"kv_cache_dtype": "int8"}),
    "int4": (LLAMA, {"kv_cache_dtype": "int4", "quantization_calibration": False}),
    "windows": (WINDOWS, {}),
    "latents": (LATENTS, {}),
    "convolutions": (CONVOLVED, {}),
    "drafts": (LLAMA, {"speculative": Ngram(num_tokens=3)}),
    "reference": (LLAMA, {"backend": "reference", "threads": None}),
}
