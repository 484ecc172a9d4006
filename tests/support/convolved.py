"""Tiny models some of whose layers are convolutions along the sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from penstock.models.spec import ModelSpec, ShortConvSpec

CONFIG: Final[dict[str, Any]] = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "vocab_size": 300,
    "hidden_size": 72,
    "intermediate_size": 104,
    "block_auto_adjust_ff_dim": False,
    "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eos_token_id": 0,
}
"""A configuration whose sizes fill no register evenly, and whose last layers are convolutions."""


def convolved(spec: ModelSpec, kinds: str, kernel: int = 3, bias: bool = False) -> ModelSpec:
    """The model with a layer for each of ``kinds``: c, a convolution, or a, its own attention."""
    base, conv = spec.layers[0], ShortConvSpec(spec.hidden_size, kernel, bias)
    layers = (replace(base, mixer=conv) if kind == "c" else base for kind in kinds)
    return replace(spec, layers=tuple(layers))
