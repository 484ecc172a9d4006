"""ERNIE 4.5, dense: Llama whose neighbouring components rotate together, and biases all over."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_decoder,
    read_kv_heads,
    read_positions,
    uniform_windows,
)
from penstock.models.llama import NAMES as NAMES
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields, read_rope
from penstock.models.spec import DType, ModelSpec

ARCHITECTURE = "Ernie4_5ForCausalLM"
ALIASES: Final = ("Ernie4_5_ForCausalLM",)
MODEL_TYPE = "ernie4_5"
KNOWN_AS = "ERNIE 4.5 0.3B"
IDLE: Final = frozenset(
    {
        *("attention_probs_dropout_prob", "hidden_dropout_prob", "ignored_index"),
        *("max_sequence_length", "use_flash_attention", "use_sparse_flash_attn"),
        *("use_var_len_flash_attn", "weight_share_add_bias"),
    }
)
"""What their own code has for training and for its kernels."""

_DEFAULTS: Final = {
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
_ROPE: Final = RopeFields(default_theta=500_000.0)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted({}, _DEFAULTS)
    config.only("compression_ratio", 1, "must be 1: positions are not compressed")
    head_dim, bias = default_head_dim(config), config.boolean("use_bias", False)
    rope = read_rope(config, head_dim, read_positions(config), _ROPE)
    return read_decoder(
        config,
        ARCHITECTURE,
        dtype,
        head_dim=head_dim,
        num_kv_heads=read_kv_heads(config),
        windows=uniform_windows(config, None),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        rope=replace(rope, interleaved=True),
    )
