"""Canonical weight names and the names that Hugging Face checkpoints use for them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

# Llama's names, which Mistral, Qwen2 and Qwen3 share. A name not listed here maps by its stem:
# "layers.3.q.bias" is what "layers.3.q" is, with ".bias" for ".weight".
_MODEL: Final[Mapping[str, str]] = {
    "embed": "model.embed_tokens",
    "fc": "model.fc",  # EAGLE
    "final_norm": "model.norm",
    "head": "lm_head",
}
_LAYER: Final[Mapping[str, str]] = {
    "attn_norm": "input_layernorm",
    "input_norm": "input_layernorm",  # EAGLE 3: of the embedding
    "feature_norm": "hidden_norm",  # EAGLE 3: of what is read beside it
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_CANONICAL = re.compile(r"(?:layers\.(\d+)\.)?([a-z_]+)(\.bias)?")
_IDLE = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


def checkpoint_name(name: str) -> str:
    """The Hugging Face tensor name of a canonical weight (``ModelSpec.weight_shapes``)."""
    match = _CANONICAL.fullmatch(name)
    if match is None:
        raise KeyError(name)
    layer, stem, bias = match.groups()
    prefix = _MODEL[stem] if layer is None else f"model.layers.{layer}.{_LAYER[stem]}"
    return prefix + (".bias" if bias else ".weight")


def is_idle(name: str) -> bool:
    """Whether a checkpoint's tensor is one that old files carry and no model reads."""
    return _IDLE.fullmatch(name) is not None
