"""Command R7B and Command A: Command R with windows, whose layers without a window do not
rotate."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    SLIDING,
    every,
    read_layer_kinds,
    read_num_layers,
    windows_of,
    with_attention,
)
from penstock.models.cohere import DEFAULTS, read_cohere
from penstock.models.cohere import NAMES as NAMES
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import LLAMA_FIELDS
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "Cohere2ForCausalLM"
MODEL_TYPE = "cohere2"
KNOWN_AS = "Command R7B, Command A"
IDLE: Final = frozenset({"cache_implementation", "use_parallel_embedding"})
"""How transformers keeps keys and values, and how the model was trained."""

# What the first configurations say of forms that transformers never computed otherwise.
_ONLY: Final = (
    ("order_of_interleaved_layers", "local_attn_first"),
    ("position_embedding_type", "rope_gptj"),
    ("rotary_pct", 1),
    ("use_embedding_sharing", True),
    ("use_gated_activation", True),
    ("use_parallel_block", True),
    ("use_qk_norm", False),
)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, DEFAULTS | {"sliding_window": 4096})
    for name, value in _ONLY:
        config.only(name, value, f"must be {str(value).lower()}: other forms are not supported")
    kinds = _layer_kinds(config)
    windows = windows_of(kinds, config.integer("sliding_window"))
    model = read_cohere(config, ARCHITECTURE, dtype, windows, LLAMA_FIELDS)
    turned = [
        replace(layer.attention, rope=layer.attention.rope if kind == SLIDING else None)
        for layer, kind in zip(model.layers, kinds, strict=True)
    ]
    return with_attention(model, turned)


def _layer_kinds(config: ConfigReader) -> tuple[str, ...]:
    """``layer_types``; else each ``sliding_window_pattern``-th layer has no window."""
    name = "sliding_window_pattern"
    layers, pattern = read_num_layers(config), config.integer("sliding_window_pattern", 4)
    by_pattern = every(pattern, layers)
    config.only("layer_switch", pattern, f"contradicts {name}, which is {pattern}")
    kinds = read_layer_kinds(config, by_pattern)
    if config.has(name) and kinds != by_pattern:
        raise config.error(name, "contradicts layer_types; remove the one that is wrong")
    return kinds
