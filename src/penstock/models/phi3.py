"""Phi-3, 3.5 and 4: Llama with fused projections, heads that rotate in part, and LongRoPE."""

from __future__ import annotations

from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_decoder,
    read_kv_heads,
    read_positions,
    uniform_windows,
)
from penstock.models.limits import MAX_POSITIONS
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.names import NameMap, fused
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields, read_rope, rope_section
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "Phi3ForCausalLM"
MODEL_TYPE = "phi3"
KNOWN_AS = "Phi-3 and 3.5 mini and medium, Phi-4, Phi-4-mini"
NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | fused("model.layers.*.self_attn.qkv_proj", "layers.*.q", "layers.*.k", "layers.*.v")
    | fused("model.layers.*.mlp.gate_up_proj", "layers.*.gate", "layers.*.up"),
    LLAMA_NAMES.idle,
)

_ORIGINAL: Final = "original_max_position_embeddings"
_ROPE: Final = RopeFields(default_partial=1.0, kinds=("default", "longrope"))
# Fields of forms that compute otherwise, with the value that changes nothing.
_ONLY: Final = (
    ("attention_bias", False),
    ("mlp_bias", False),
    ("lm_head_bias", False),
    ("full_attn_mod", 1),
    ("interpolate_factor", 1),
)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    for name, value in _ONLY:
        config.only(name, value, f"must be {str(value).lower()}: other forms are not supported")
    head_dim, positions = default_head_dim(config), read_positions(config)
    original = config.optional_integer(_ORIGINAL, high=MAX_POSITIONS)
    inside = rope_section(config)
    if original is None and (inside is None or not inside.has(_ORIGINAL)):
        original = 4096  # transformers' default, where nothing is said
    return read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=head_dim,
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, config.optional_integer("sliding_window")),
        rope=read_rope(config, head_dim, positions, _ROPE, original),
    )
