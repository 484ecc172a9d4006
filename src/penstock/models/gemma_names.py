"""What the checkpoints of Gemma 2 and 3 call their weights."""

from __future__ import annotations

from typing import Final

from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.names import NameMap, less_one

SANDWICH_NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | less_one(
        {
            "layers.*.attn_norm": "model.layers.*.input_layernorm",
            "layers.*.attn_post_norm": "model.layers.*.post_attention_layernorm",
            "layers.*.mlp_norm": "model.layers.*.pre_feedforward_layernorm",
            "layers.*.mlp_post_norm": "model.layers.*.post_feedforward_layernorm",
            "layers.*.q_norm": "model.layers.*.self_attn.q_norm",
            "layers.*.k_norm": "model.layers.*.self_attn.k_norm",
            "final_norm": "model.norm",
        }
    ),
    LLAMA_NAMES.idle,
)
"""Llama's, with norms before and behind each part whose weights are stored less 1."""
