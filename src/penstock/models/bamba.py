"""Bamba: Llama with selective scans (Mamba 2) in the place of attention in most layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.models.blocks import (
    default_head_dim,
    read_attention,
    read_kv_heads,
    read_mlp,
    read_model,
    read_norm,
    read_num_layers,
    read_positions,
)
from penstock.models.llama import NAMES as LLAMA_NAMES
from penstock.models.names import NameMap, plain
from penstock.models.reader import ConfigReader
from penstock.models.rope_config import RopeFields, extended_positions, read_rope
from penstock.models.selective import MAMBA_FIELDS, read_expanded_scan, scan_names
from penstock.models.spec import DType, LayerSpec, ModelSpec

ARCHITECTURE = "BambaForCausalLM"
MODEL_TYPE = "bamba"
KNOWN_AS = "Bamba 9B"
IDLE: Final = frozenset({"mamba_chunk_size", "num_logits_to_keep", "z_loss_coefficient"})
_LAYER: Final = "model.layers.*"
NAMES: Final = NameMap(
    dict(LLAMA_NAMES.names)
    | scan_names(f"{_LAYER}.mamba")
    | plain({f"layers.*.{x}": f"{_LAYER}.feed_forward.{x}_proj" for x in ("gate", "up", "down")})
    | plain({"layers.*.mlp_norm": f"{_LAYER}.pre_ff_layernorm"})
    | plain({"final_norm": "model.final_layernorm"}),
    LLAMA_NAMES.idle,
)

_DEFAULTS: Final = {
    "groups": 1,
    "heads": 128,
    "kernel": 4,
    "max_position_embeddings": 262144,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "state_size": 256,
}
_ROPE: Final = RopeFields(default_partial=0.5)


def read(config: ConfigReader, dtype: DType) -> ModelSpec:
    config = config.adapted(MAMBA_FIELDS, _DEFAULTS)
    norm, positions = read_norm(config), read_positions(config)
    bias = config.boolean("attention_bias", False)
    mlp = read_mlp(config, bias=config.boolean("mlp_bias", False))
    head_dim = default_head_dim(config)
    config.only("attn_rotary_emb", head_dim // 2, f"must be {head_dim // 2}, half of a head")
    config.only("partial_rotary_factor", 0.5, "must be 0.5, as transformers has it")
    rope = read_rope(config, head_dim, positions, _ROPE)
    attention = replace(
        read_attention(config, head_dim, read_kv_heads(config)),
        rope=rope,
        qkv_bias=bias,
        output_bias=bias,
    )
    scan, count = read_expanded_scan(config, norm.eps), read_num_layers(config)
    attends = config.integers("attn_layer_indices", high=count - 1)
    mixers = [attention if i in attends else scan for i in range(count)]
    return read_model(
        config,
        ARCHITECTURE,
        dtype,
        layers=[LayerSpec(each, mlp, attn_norm=norm, mlp_norm=norm) for each in mixers],
        final_norm=norm,
        max_positions=extended_positions(rope, positions),
    )
